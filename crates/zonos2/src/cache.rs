//! Keys and values of past positions.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use zonos_kernels::ops;

use crate::Zonos2Config;
use crate::segment::Packed;

/// Storage type of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheDType {
    /// Exact: decoding with the cache equals recomputing to rounding.
    #[default]
    F32,
    /// Half the memory and traffic; keys and values are rounded to 11 significant bits.
    F16,
}

impl CacheDType {
    fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
        }
    }
}

/// Rotated keys and values of every layer, `[batch, kv_heads, capacity, head_dim]` each,
/// preallocated.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<Slot>,
    lengths: Vec<usize>,
    capacity: usize,
    dtype: CacheDType,
}

/// Tensors of a layer; empty only while an update holds them, so that the update is in place.
#[derive(Debug)]
struct Slot {
    k: Option<Tensor<4>>,
    v: Option<Tensor<4>>,
}

impl KvCache {
    /// Room for `capacity` positions of `batch` sequences.
    pub fn new(
        config: &Zonos2Config,
        batch: usize,
        capacity: usize,
        dtype: CacheDType,
        device: &Device,
    ) -> Self {
        let shape = [batch, config.n_kv_heads(), capacity, config.head_dim];
        let empty = || Some(Tensor::zeros(shape, (device, dtype.dtype())));
        let layers = (0..config.n_layers)
            .map(|_| Slot {
                k: empty(),
                v: empty(),
            })
            .collect();
        Self {
            layers,
            lengths: vec![0; batch],
            capacity,
            dtype,
        }
    }

    /// Cached positions of each sequence.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Positions that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes that the cache takes when full.
    pub fn bytes(&self) -> usize {
        let elements: usize = self
            .layers
            .iter()
            .filter_map(|slot| slot.k.as_ref())
            .map(|k| 2 * k.dims().iter().product::<usize>())
            .sum();
        elements * self.dtype.dtype().size()
    }

    /// Keeps only the sequences `keep`, in that order.
    pub fn retain(&mut self, keep: &[usize]) {
        if keep.len() == self.lengths.len() {
            return;
        }
        for slot in &mut self.layers {
            for tensor in [&mut slot.k, &mut slot.v] {
                if let Some(old) = tensor.take() {
                    let rows: Vec<i32> = keep.iter().map(|&i| i as i32).collect();
                    let data = TensorData::new(rows, [keep.len()]);
                    let rows = Tensor::<1, Int>::from_data(data, (&old.device(), DType::I32));
                    *tensor = Some(old.select(0, rows));
                }
            }
        }
        self.lengths = keep.iter().map(|&i| self.lengths[i]).collect();
    }

    /// The cache of layer `n`.
    pub(crate) fn layer(&mut self, n: usize) -> LayerCache<'_> {
        LayerCache {
            slot: &mut self.layers[n],
            decode: self.lengths.iter().any(|&length| length > 0),
        }
    }

    /// Counts the rows of `packed`, once every layer has appended them.
    pub(crate) fn advance(&mut self, packed: &Packed) {
        for (length, rows) in self.lengths.iter_mut().zip(&packed.segments) {
            *length += rows.len();
        }
    }
}

/// One layer's part of a [`KvCache`].
pub(crate) struct LayerCache<'a> {
    slot: &'a mut Slot,
    decode: bool,
}

impl LayerCache<'_> {
    /// Whether earlier positions are cached, so that attention must read them.
    pub(crate) fn is_decode(&self) -> bool {
        self.decode
    }

    /// Writes `k`, `v [rows, kv_heads, D]` behind the cached positions of their sequences.
    pub(crate) fn append(&mut self, k: Tensor<3>, v: Tensor<3>, packed: &Packed) {
        let write = |cache: &mut Option<Tensor<4>>, new: Tensor<3>| {
            let old = cache.take().expect("a layer's cache is only taken here");
            let counts = packed.segments.iter().map(ExactSizeIterator::len).collect();
            *cache = Some(ops::cache_append(old, new, counts, packed.past.clone()));
        };
        write(&mut self.slot.k, k);
        write(&mut self.slot.v, v);
    }

    /// `k`, `v [batch, kv_heads, capacity, D]`, in the storage type.
    pub(crate) fn keys_values(&self) -> (Tensor<4>, Tensor<4>) {
        let get =
            |x: &Option<Tensor<4>>| x.clone().expect("a layer's cache is whole between updates");
        (get(&self.slot.k), get(&self.slot.v))
    }
}
