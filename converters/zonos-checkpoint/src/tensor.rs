//! One tensor of a checkpoint: where its bytes are, and how they become [`TensorData`].

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::{AllocationProperty, Bytes, DType, TensorData};
use rayon::prelude::*;
use zonos_gguf::GgmlType;
use zonos_gguf::blocks::dequantize_row;

use crate::CheckpointError;
use crate::mapped::MappedFile;

/// The highest rank accepted; real models stop at 5.
pub(crate) const MAX_RANK: usize = 16;
/// A broadcast view (stride 0) larger than its file may not grow beyond this when it is written out.
const MAX_EXPANDED: u64 = 1 << 30;

/// What a checkpoint says about one tensor, without reading its values.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Element type in the file; of block-quantised values F32, which they are read as.
    pub dtype: DType,
    /// The block format of quantised values (GGUF); `None` where elements stand one by one.
    pub blocks: Option<GgmlType>,
    /// Extents, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Bytes of the values as the file has them, row-major without gaps.
    pub bytes: u64,
    /// The file that holds the values.
    pub file: Arc<Path>,
    /// Where in that file the first element stands.
    pub offset: u64,
    /// Whether the file holds the values row-major without gaps (else they are gathered when read).
    pub contiguous: bool,
}

impl TensorInfo {
    /// The name of the stored type: `F32`, `BF16`, `Q4_K`.
    pub fn type_name(&self) -> String {
        match self.blocks {
            Some(blocks) => blocks.name().to_uppercase(),
            None => format!("{:?}", self.dtype),
        }
    }
}

/// A named tensor and the mapping that holds it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) info: TensorInfo,
    map: Arc<MappedFile>,
    /// Element strides, when they are not the row-major ones.
    strides: Option<Vec<usize>>,
}

/// Where a tensor lives, as a reader found it; [`Entry::new`] checks it.
pub(crate) struct Location {
    pub(crate) map: Arc<MappedFile>,
    /// Byte range of the storage within the file.
    pub(crate) storage: Range<usize>,
    pub(crate) dtype: DType,
    /// First element, counted in elements from the start of the storage.
    pub(crate) first: usize,
    pub(crate) shape: Vec<usize>,
    /// Element strides; `None` means row-major.
    pub(crate) strides: Option<Vec<usize>>,
}

impl Entry {
    /// Checks that the tensor fits its storage and the storage its file; the error is the reason.
    pub(crate) fn new(name: String, at: Location) -> Result<Self, String> {
        let Location {
            map,
            storage,
            dtype,
            first,
            shape,
            strides,
        } = at;
        if shape.len() > MAX_RANK {
            return Err(format!(
                "{} dimensions, at most {MAX_RANK} are read",
                shape.len()
            ));
        }
        let width = dtype.size();
        let numel = shape
            .iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d))
            .ok_or_else(|| format!("shape {shape:?} has more elements than can be counted"))?;
        let bytes = numel
            .checked_mul(width)
            .ok_or_else(|| format!("shape {shape:?} has more bytes than can be counted"))?;
        if storage.end > map.len() || storage.start > storage.end {
            return Err(format!(
                "storage from byte {} to byte {} lies outside the file of {} bytes",
                storage.start,
                storage.end,
                map.len()
            ));
        }
        let row_major = row_major(&shape);
        let strides = match strides {
            Some(s) if s.len() != shape.len() => {
                return Err(format!(
                    "{} strides for {} dimensions",
                    s.len(),
                    shape.len()
                ));
            }
            // A dimension of length 1 is never stepped over, so its stride says nothing.
            Some(s) if numel > 0 && (0..s.len()).any(|i| shape[i] != 1 && s[i] != row_major[i]) => {
                Some(s)
            }
            _ => None,
        };
        let last = if numel == 0 {
            Some(0)
        } else {
            let steps = strides.as_ref().unwrap_or(&row_major);
            shape
                .iter()
                .zip(steps)
                .try_fold(0usize, |at, (&d, &s)| {
                    at.checked_add((d - 1).checked_mul(s)?)
                })
                .and_then(|at| at.checked_add(1))
        };
        let reach = last
            .and_then(|n| n.checked_add(first))
            .and_then(|n| n.checked_mul(width))
            .ok_or_else(|| format!("shape {shape:?} with offset {first} overflows"))?;
        let have = storage.end - storage.start;
        if reach > have {
            return Err(format!(
                "shape {shape:?} of {dtype:?} needs {reach} bytes, its storage has {have}"
            ));
        }
        if bytes as u64 > MAX_EXPANDED && bytes > map.len() {
            return Err(format!(
                "a broadcast view of shape {shape:?} would take {bytes} bytes, more than its file"
            ));
        }
        let offset = storage.start + first * width;
        Ok(Self {
            name,
            info: TensorInfo {
                dtype,
                blocks: None,
                shape,
                bytes: bytes as u64,
                file: map.shared_path(),
                offset: offset as u64,
                contiguous: strides.is_none(),
            },
            map,
            strides,
        })
    }

    /// An entry of rows of quantised blocks, whose byte length the reader has checked.
    pub(crate) fn blocks(
        name: String,
        map: Arc<MappedFile>,
        range: Range<usize>,
        blocks: GgmlType,
        shape: Vec<usize>,
    ) -> Self {
        let mut entry = Self::opaque(name, map, range, DType::F32, shape);
        entry.info.blocks = Some(blocks);
        entry
    }

    /// An entry whose byte length does not follow from its shape (Burn's quantised tensors).
    pub(crate) fn opaque(
        name: String,
        map: Arc<MappedFile>,
        range: Range<usize>,
        dtype: DType,
        shape: Vec<usize>,
    ) -> Self {
        Self {
            name,
            info: TensorInfo {
                dtype,
                blocks: None,
                shape,
                bytes: (range.end - range.start) as u64,
                file: map.shared_path(),
                offset: range.start as u64,
                contiguous: true,
            },
            map,
            strides: None,
        }
    }

    /// The values in the file's dtype: a view of the mapping where the file is row-major and aligned
    /// for the dtype, a copy otherwise. Blocks are decoded.
    pub(crate) fn data(&self) -> Result<TensorData, CheckpointError> {
        let info = &self.info;
        if let Some(blocks) = info.blocks {
            let values = self.decode(blocks)?;
            return TensorData::try_from_bytes(values, info.shape.clone(), info.dtype)
                .map_err(|e| self.error(&e.to_string()));
        }
        let bytes = match &self.strides {
            None => {
                let start = info.offset as usize;
                let view = self.map.slice(start..start + info.bytes as usize);
                share_or_copy(
                    view.ok_or_else(|| self.error("lies outside its file"))?,
                    info.dtype,
                )
            }
            Some(strides) => self.gather(strides)?,
        };
        TensorData::try_from_bytes(bytes, info.shape.clone(), info.dtype)
            .map_err(|e| self.error(&e.to_string()))
    }

    /// The bytes of block-quantised rows where they lie, `[.., bytes of a row]`.
    pub(crate) fn block_rows(&self) -> Result<TensorData, CheckpointError> {
        let start = self.info.offset as usize;
        let view = self.map.slice(start..start + self.info.bytes as usize);
        let view = view.ok_or_else(|| self.error("lies outside its file"))?;
        let bytes = Bytes::from_shared(view, AllocationProperty::File);
        let shape = self
            .block_shape()
            .ok_or_else(|| self.error("has no blocks"))?;
        TensorData::try_from_bytes(bytes, shape, DType::U8).map_err(|e| self.error(&e.to_string()))
    }

    /// Bytes of the values as they are read.
    pub(crate) fn value_bytes(&self) -> usize {
        match self.info.blocks {
            Some(_) => self.info.shape.iter().product::<usize>() * self.info.dtype.size(),
            None => self.info.bytes as usize,
        }
    }

    /// The shape of [`Entry::block_rows`].
    pub(crate) fn block_shape(&self) -> Option<Vec<usize>> {
        let mut shape = self.info.shape.clone();
        let row = shape.last_mut()?;
        *row = usize::try_from(self.info.blocks?.bytes_for(*row as u64)?).ok()?;
        Some(shape)
    }

    /// How many values are NaN, and how many infinite. Blocks are decoded a row at a time.
    pub(crate) fn non_finite(&self) -> Result<(u64, u64), CheckpointError> {
        let Some(blocks) = self.info.blocks else {
            return Ok(crate::values::non_finite(&self.data()?));
        };
        let rows = self.block_rows()?;
        let row = self.info.shape.last().copied().unwrap_or(1).max(1);
        let row_bytes = rows.shape().last().copied().unwrap_or(1).max(1);
        rows.bytes()
            .par_chunks(row_bytes)
            .map_init(
                || vec![0.0f32; row],
                |values, bytes| {
                    dequantize_row(blocks, bytes, values)
                        .map_err(|e| self.error(&e.to_string()))?;
                    let bad = values.iter().filter(|v| !v.is_finite());
                    Ok(bad.fold((0, 0), |(nan, infinite), v| match v.is_nan() {
                        true => (nan + 1, infinite),
                        false => (nan, infinite + 1),
                    }))
                },
            )
            .try_reduce(|| (0, 0), |a, b| Ok((a.0 + b.0, a.1 + b.1)))
    }

    fn decode(&self, blocks: GgmlType) -> Result<Bytes, CheckpointError> {
        let rows = self.block_rows()?;
        let row = self.info.shape.last().copied().unwrap_or(1).max(1);
        let row_bytes = rows.shape().last().copied().unwrap_or(1).max(1);
        let mut values = vec![0.0f32; self.info.shape.iter().product()];
        values
            .par_chunks_mut(row)
            .zip(rows.bytes().par_chunks(row_bytes))
            .try_for_each(|(to, from)| dequantize_row(blocks, from, to))
            .map_err(|e| self.error(&e.to_string()))?;
        Ok(Bytes::from_elems(values))
    }

    fn error(&self, reason: &str) -> CheckpointError {
        CheckpointError::Tensor {
            path: self.map.path().into(),
            name: self.name.clone(),
            reason: reason.into(),
        }
    }

    /// Copies a strided view into row-major order.
    fn gather(&self, strides: &[usize]) -> Result<Bytes, CheckpointError> {
        let width = self.info.dtype.size();
        let shape = &self.info.shape;
        let source = self.map.bytes();
        let base = self.info.offset as usize;
        let inner = shape.last().copied().unwrap_or(1);
        let inner_stride = strides.last().copied().unwrap_or(1) * width;
        let mut index = vec![0usize; shape.len()];
        Ok(aligned(self.info.bytes as usize, width, |out| {
            for row in out.chunks_exact_mut(inner * width) {
                let start = base
                    + index
                        .iter()
                        .zip(strides)
                        .map(|(i, s)| i * s * width)
                        .sum::<usize>();
                for (i, element) in row.chunks_exact_mut(width).enumerate() {
                    let at = start + i * inner_stride;
                    element.copy_from_slice(&source[at..at + width]);
                }
                for axis in (0..shape.len().saturating_sub(1)).rev() {
                    index[axis] += 1;
                    if index[axis] < shape[axis] {
                        break;
                    }
                    index[axis] = 0;
                }
            }
        }))
    }
}

/// Row-major element strides of `shape`.
pub(crate) fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1].saturating_mul(shape[axis + 1].max(1));
    }
    strides
}

/// Burn bytes over a slice of the mapping, copied only when the dtype needs a better alignment.
pub(crate) fn share_or_copy(view: bytes::Bytes, dtype: DType) -> Bytes {
    let width = match dtype {
        DType::QFloat(_) => 4,
        other => other.size(),
    };
    if (view.as_ptr() as usize).is_multiple_of(width) {
        Bytes::from_shared(view, AllocationProperty::File)
    } else {
        aligned(view.len(), width, |out| out.copy_from_slice(&view))
    }
}

/// Fresh zeroed bytes, aligned for elements of `width` bytes, filled by `fill`.
///
/// `len` is a multiple of `width` except for quantised data, which is taken as bytes.
pub(crate) fn aligned(len: usize, width: usize, fill: impl FnOnce(&mut [u8])) -> Bytes {
    match width {
        2 if len.is_multiple_of(2) => {
            let mut v = vec![0u16; len / 2];
            fill(bytemuck::cast_slice_mut(&mut v));
            Bytes::from_elems(v)
        }
        4 if len.is_multiple_of(4) => {
            let mut v = vec![0u32; len / 4];
            fill(bytemuck::cast_slice_mut(&mut v));
            Bytes::from_elems(v)
        }
        8 if len.is_multiple_of(8) => {
            let mut v = vec![0u64; len / 8];
            fill(bytemuck::cast_slice_mut(&mut v));
            Bytes::from_elems(v)
        }
        _ => {
            let mut v = vec![0u8; len];
            fill(&mut v);
            Bytes::from_bytes_vec(v)
        }
    }
}
