//! Dense layers, layer normalisation, attention of many queries and depthwise convolution against the
//! portable implementations, on every instruction set at hand; and that results do not depend on how
//! rows, queries or time are cut.

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Slice};
use burn_flex::FlexTensor;
use proptest::prelude::*;

use super::conv_tests::values;
use super::linear_tests::{close, float_dtype, floats, tensor};
use super::simd::Isa;
use super::{dense, depthwise, layer_norm, query_tiles};
use crate::{Activation, portable};

fn f32s<const D: usize>(shape: [usize; D], seed: u64) -> FlexTensor {
    of_type(shape, seed, DType::F32)
}

/// Seeds that differ little give unrelated values: sums of products stay small.
fn of_type<const D: usize>(shape: [usize; D], seed: u64, dtype: DType) -> FlexTensor {
    let mixed = (seed ^ (seed >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    tensor(shape, mixed ^ (mixed >> 27), dtype)
}

/// `range` of axis `axis`, as a view.
fn part<const D: usize>(
    x: &FlexTensor,
    shape: [usize; D],
    axis: usize,
    range: std::ops::Range<usize>,
) -> FlexTensor {
    let mut ranges: Vec<Slice> = shape.into_iter().map(|n| Slice::from(0..n)).collect();
    ranges[axis] = Slice::from(range);
    Flex::float_slice(x.clone(), &ranges)
}

fn activations() -> impl Strategy<Value = Activation> {
    prop_oneof![
        Just(Activation::None),
        Just(Activation::Gelu),
        Just(Activation::Silu)
    ]
}

/// The operands of a dense layer, with the optional ones that the bits of `given` ask for.
struct Layer {
    x: FlexTensor,
    weight: FlexTensor,
    bias: Option<FlexTensor>,
    scale: Option<FlexTensor>,
    residual: Option<FlexTensor>,
}

impl Layer {
    fn new(rows: usize, inner: usize, out: usize, dtype: DType, given: u8, seed: u64) -> Self {
        Self {
            x: f32s([rows, inner], seed),
            weight: of_type([out, inner], seed ^ 1, dtype),
            bias: (given & 1 > 0).then(|| f32s([out], seed ^ 2)),
            scale: (given & 2 > 0).then(|| f32s([out], seed ^ 3)),
            residual: (given & 4 > 0).then(|| f32s([rows, out], seed ^ 4)),
        }
    }

    fn portable(&self, activation: Activation) -> Vec<f32> {
        floats(portable::dense::<Flex>(
            self.x.clone(),
            self.weight.clone(),
            self.bias.clone(),
            activation,
            self.scale.clone(),
            self.residual.clone(),
        ))
    }

    fn kernel(&self, isa: Isa, activation: Activation) -> Vec<f32> {
        floats(dense::dense(
            isa,
            self.x.clone(),
            self.weight.clone(),
            self.bias.clone(),
            activation,
            self.scale.clone(),
            self.residual.clone(),
        ))
    }

    /// Rows `range` alone.
    fn rows(&self, range: std::ops::Range<usize>) -> Self {
        let cut = |x: &FlexTensor| {
            let shape = burn::backend::TensorMetadata::shape(x).dims::<2>();
            part(x, shape, 0, range.clone())
        };
        Self {
            x: cut(&self.x),
            weight: self.weight.clone(),
            bias: self.bias.clone(),
            scale: self.scale.clone(),
            residual: self.residual.as_ref().map(cut),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn dense_equals_portable(
        rows in 1usize..90, out in 1usize..140, inner in 1usize..600, dtype in float_dtype(),
        activation in activations(), given in 0u8..8, seed in any::<u64>(),
    ) {
        let layer = Layer::new(rows, inner, out, dtype, given, seed);
        let expected = layer.portable(activation);
        for isa in Isa::available() {
            close(&layer.kernel(isa, activation), &expected, inner)?;
        }
    }

    #[test]
    fn a_row_gives_the_same_bits_however_many_there_are(
        rows in 2usize..130, cut in 1usize..129, out in 1usize..120, inner in 1usize..600,
        dtype in float_dtype(), activation in activations(), seed in any::<u64>(),
    ) {
        let cut = cut.min(rows - 1);
        let layer = Layer::new(rows, inner, out, dtype, 7, seed);
        for isa in Isa::available() {
            let whole = layer.kernel(isa, activation);
            let parts = [0..cut, cut..rows].map(|r| layer.rows(r).kernel(isa, activation)).concat();
            prop_assert!(whole == parts, "{:?}: {} rows cut at {}", isa, rows, cut);
        }
    }

    #[test]
    fn layer_norm_equals_portable(rows in 1usize..40, width in 1usize..300, seed in any::<u64>()) {
        let (x, w, b) = (f32s([rows, width], seed), f32s([width], seed ^ 1), f32s([width], seed ^ 2));
        // The smallest deviation, 0.1, raises rounding tenfold.
        let expected = floats(portable::layer_norm::<Flex>(x.clone(), w.clone(), b.clone(), 1e-2));
        for isa in Isa::available() {
            let got = floats(layer_norm::layer_norm(isa, x.clone(), w.clone(), b.clone(), 1e-2));
            for (a, b) in got.iter().zip(&expected) {
                prop_assert!((a - b).abs() <= 4e-6, "{:?}: {} against {}", isa, a, b);
            }
        }
    }

    #[test]
    fn depthwise_conv1d_equals_portable(
        batch in 1usize..3, time in 1usize..150, channels in 1usize..150, taps in 1usize..34,
        biased in any::<bool>(), strided in any::<bool>(), seed in any::<u64>(),
    ) {
        let padded = time + taps - 1;
        let x = if strided {
            let wide = f32s([batch, padded, channels + 5], seed);
            part(&wide, [batch, padded, channels + 5], 2, 3..channels + 3)
        } else {
            f32s([batch, padded, channels], seed)
        };
        let w = f32s([channels, 1, taps], seed ^ 1);
        let b = biased.then(|| f32s([channels], seed ^ 2));
        let expected = floats(portable::depthwise_conv1d::<Flex>(x.clone(), w.clone(), b.clone()));
        for isa in Isa::available() {
            let run = |x: FlexTensor| floats(depthwise::depthwise_conv1d(isa, x, w.clone(), b.clone()));
            let whole = run(x.clone());
            close(&whole, &expected, taps)?;
            if batch == 1 && time > 1 {
                let cut = 1 + seed as usize % (time - 1);
                let shape = [batch, padded, channels];
                let parts = [
                    run(part(&x, shape, 1, 0..cut + taps - 1)),
                    run(part(&x, shape, 1, cut..padded)),
                ];
                prop_assert!(whole == parts.concat(), "{:?}: {} positions cut at {}", isa, time, cut);
            }
        }
    }

    #[test]
    fn window_attention_equals_portable(
        batch in 1usize..3, heads in 1usize..4, dim in 1usize..70, queries in 1usize..120,
        past in 0usize..90, context in 1usize..130, strided in any::<bool>(), seed in any::<u64>(),
    ) {
        let keys = past + queries;
        // As cut from one product of queries, keys and values.
        let cut = |time: usize, at: usize, seed: u64| if strided {
            let shape = [batch, time, heads, 3 * dim];
            part(&f32s(shape, seed), shape, 3, at * dim..(at + 1) * dim)
        } else {
            f32s([batch, time, heads, dim], seed)
        };
        let (q, k, v) = (cut(queries, 0, seed), cut(keys, 1, seed ^ 1), cut(keys, 2, seed ^ 2));
        let expected = portable::window_attention::<Flex>(q.clone(), k.clone(), v.clone(), context);
        let expected = floats(expected);
        for isa in Isa::available() {
            let got = query_tiles::window_attention(isa, q.clone(), k.clone(), v.clone(), context);
            close(&floats(got), &expected, dim + context.min(keys))?;
        }
    }

    #[test]
    fn window_attention_in_pieces_gives_the_bits_of_the_whole(
        heads in 1usize..3, dim in 1usize..70, queries in 2usize..200, cut in 1usize..199,
        context in 1usize..130, seed in any::<u64>(),
    ) {
        let cut = cut.min(queries - 1);
        let shape = [1, queries, heads, dim];
        let [q, k, v] = [0, 1, 2].map(|i| f32s(shape, seed ^ i));
        for isa in Isa::available() {
            let run = |queries: std::ops::Range<usize>, keys: std::ops::Range<usize>| {
                let q = part(&q, shape, 1, queries);
                let (k, v) = (part(&k, shape, 1, keys.clone()), part(&v, shape, 1, keys));
                floats(query_tiles::window_attention(isa, q, k, v, context))
            };
            let whole = run(0..queries, 0..queries);
            // A stream keeps what its window reaches, and may keep more.
            let kept = (cut + 1).saturating_sub(context + seed as usize % 3);
            let parts = [run(0..cut, 0..cut), run(cut..queries, kept..queries)].concat();
            prop_assert!(whole == parts, "{:?}: {} queries cut at {}", isa, queries, cut);
        }
    }

    #[test]
    fn relative_attention_equals_portable(
        batch in 1usize..3, heads in 1usize..4, dim in 1usize..70, time in 1usize..150,
        left in 0usize..80, right in 0usize..20, masked in 0usize..3, seed in any::<u64>(),
    ) {
        let shape = [batch, time, heads, dim];
        let [q, k, v] = [0, 1, 2].map(|i| f32s(shape, seed ^ i));
        let table = f32s([left + right + 1, dim], seed ^ 3);
        let mask = (masked > 0).then(|| {
            let mut mask: Vec<f32> = values(seed ^ 4, batch * time).iter().map(|v| f32::from(*v > -0.4)).collect();
            if masked == 2 {
                // Nothing to see: even weights.
                mask[..time].fill(0.0);
            }
            FlexTensor::from_data(burn::tensor::TensorData::new(mask, [batch, time]))
        });
        let expected = portable::relative_attention::<Flex>(
            q.clone(), k.clone(), v.clone(), table.clone(), left, right, mask.clone(),
        );
        let expected = floats(expected);
        for isa in Isa::available() {
            let got = query_tiles::relative_attention(
                isa, q.clone(), k.clone(), v.clone(), table.clone(), left, right, mask.clone(),
            );
            close(&floats(got), &expected, dim + time)?;
        }
    }
}

#[test]
fn many_rows_go_in_chunks() {
    // More rows than are packed at a time, unevenly; weight rows beyond an item's.
    let layer = Layer::new(1601, 37, 205, DType::F32, 7, 5);
    let expected = layer.portable(Activation::Gelu);
    for isa in Isa::available() {
        let whole = layer.kernel(isa, Activation::Gelu);
        close(&whole, &expected, 37).expect("close");
        assert!(whole[..7 * 205] == layer.rows(0..7).kernel(isa, Activation::Gelu));
    }
}

#[test]
fn nothing_in_gives_nothing_out() {
    let isa = Isa::best();
    let layer = Layer::new(0, 5, 3, DType::F32, 7, 1);
    assert!(layer.kernel(isa, Activation::Silu).is_empty());
    // No inputs: what stands behind the product is left.
    let layer = Layer::new(2, 0, 3, DType::F32, 1, 1);
    assert_eq!(
        layer.kernel(isa, Activation::None),
        layer.portable(Activation::None)
    );
    let x = f32s([1, 6, 0], 1);
    assert!(
        floats(depthwise::depthwise_conv1d(
            isa,
            x,
            f32s([0, 1, 7], 1),
            None
        ))
        .is_empty()
    );
    let x = f32s([1, 6, 4], 1);
    assert!(
        floats(depthwise::depthwise_conv1d(
            isa,
            x,
            f32s([4, 1, 7], 1),
            None
        ))
        .is_empty()
    );
    let (q, k) = (f32s([1, 0, 2, 3], 1), f32s([1, 4, 2, 3], 1));
    assert!(floats(query_tiles::window_attention(isa, q, k.clone(), k, 5)).is_empty());
    assert!(
        floats(layer_norm::layer_norm(
            isa,
            f32s([0, 4], 1),
            f32s([4], 1),
            f32s([4], 1),
            0.1
        ))
        .is_empty()
    );
}
