//! Operations of a decode step against their portable forms: attention to a cache, what is written into it,
//! routing.

use burn::backend::Flex;
use burn::tensor::{DType, TensorData};
use burn_flex::FlexTensor;
use proptest::prelude::*;

use super::linear_tests::{close, float_dtype, floats, ids, tensor};
use super::simd::Isa;
use super::{attention, cache, router};
use crate::backend::RouterWeights;
use crate::{RouterOptions, portable};

fn half_or_whole() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F16), Just(DType::F32)]
}

/// Heads `from..` of rows that have more of them.
fn heads_from(x: FlexTensor, from: usize) -> FlexTensor {
    use burn::backend::TensorMetadata;
    use burn::backend::ops::FloatTensorOps;
    use burn::tensor::Slice;
    let [rows, heads, dim] = x.shape().dims::<3>();
    Flex::float_slice(x, &[0..rows, from..heads, 0..dim].map(Slice::from))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn decode_attention_equals_portable(
        batch in 1usize..4, kv_heads in 1usize..4, group in 1usize..7, capacity in 1usize..300,
        dim in 1usize..70, dtype in half_or_whole(), seed in any::<u64>(),
    ) {
        let q = tensor([batch, kv_heads * group, dim], seed, DType::F32);
        let k = tensor([batch, kv_heads, capacity, dim], seed ^ 1, dtype);
        let v = tensor([batch, kv_heads, capacity, dim], seed ^ 2, dtype);
        let lengths: Vec<i32> = (0..batch).map(|i| 1 + ((seed >> i) as usize % capacity) as i32).collect();
        let longest = *lengths.iter().max().expect("a batch is not empty") as usize;
        let expected = floats(portable::decode_attention::<Flex>(
            q.clone(), k.clone(), v.clone(), ids(lengths.clone()), longest,
        ));
        for isa in Isa::available() {
            let got = attention::decode_attention(isa, q.clone(), k.clone(), v.clone(), ids(lengths.clone()));
            close(&floats(got), &expected, dim + capacity)?;
        }
    }

    #[test]
    fn scores_far_apart_are_weighed_right(
        positions in 1usize..200, peak in any::<prop::sample::Index>(), dtype in half_or_whole(),
    ) {
        // One key is the query itself, a hundred times as long as the others: its value is the result.
        let (dim, peak) = (16, peak.index(positions));
        let row = |t: usize| vec![if t == peak { 100.0f32 } else { 1.0 }; dim];
        let k: Vec<f32> = (0..positions).flat_map(row).collect();
        let v: Vec<f32> = (0..positions).flat_map(|t| vec![t as f32; dim]).collect();
        let cache = |values: Vec<f32>| {
            FlexTensor::from_data(TensorData::new(values, [1, 1, positions, dim]).convert_dtype(dtype))
        };
        let q = FlexTensor::from_data(TensorData::new(vec![1.0f32; dim], [1, 1, dim]));
        for isa in Isa::available() {
            let lengths = ids(vec![positions as i32]);
            let got = attention::decode_attention(isa, q.clone(), cache(k.clone()), cache(v.clone()), lengths);
            prop_assert_eq!(floats(got), vec![peak as f32; dim]);
        }
    }

    #[test]
    fn cache_append_equals_portable(
        counts in prop::collection::vec(1usize..5, 1..4), heads in 1usize..4, skipped in 0usize..3,
        dim in 1usize..20, room in 0usize..6, dtype in half_or_whole(), seed in any::<u64>(),
    ) {
        let batch = counts.len();
        let rows = counts.iter().sum();
        let past: Vec<usize> = (0..batch).map(|i| (seed >> i) as usize % (room + 1)).collect();
        let cache = || tensor([batch, heads, room + 5, dim], seed, dtype);
        let new = || heads_from(tensor([rows, skipped + heads, dim], seed ^ 1, DType::F32), skipped);
        let bits = |cache: FlexTensor| cache.bytes().to_vec();
        let expected = portable::cache_append::<Flex>(cache(), new(), counts.clone(), past.clone());
        let got = cache::cache_append(cache(), new(), counts.clone(), past.clone());
        prop_assert_eq!(bits(got), bits(expected.clone()));
        // What somebody else still holds stays as it is.
        let held = cache();
        let got = cache::cache_append(held.clone(), new(), counts, past);
        prop_assert_eq!(bits(got), bits(expected));
        prop_assert_eq!(bits(held), bits(cache()));
    }

    #[test]
    fn route_equals_portable(
        rows in 1usize..6, width in 1usize..50, hidden in 1usize..50, experts in 1usize..20, k in 1usize..4,
        below in any::<bool>(), sign in prop_oneof![Just(1.0f32), Just(-1.0)], dtype in float_dtype(),
        seed in any::<u64>(),
    ) {
        let vector = |n: usize, s: u64| tensor([n], seed ^ s, DType::F32);
        let matrix = |out: usize, inner: usize, s: u64| tensor([out, inner], seed ^ s, dtype);
        let weights = || RouterWeights::<Flex> {
            bias: vector(width, 1),
            norm: vector(width, 2),
            first: matrix(hidden, width, 3),
            first_bias: vector(hidden, 4),
            second: matrix(hidden, hidden, 5),
            second_bias: vector(hidden, 6),
            last: matrix(experts, hidden, 7),
            balancing: vector(experts, 8),
        };
        let options = RouterOptions { eps: 1e-5, sign, top_k: k.min(experts) };
        let down = tensor([rows, width], seed ^ 9, DType::F32);
        let below = below.then(|| tensor([rows, width], seed ^ 10, DType::F32));
        let scale = below.as_ref().map(|_| vector(width, 11));
        let expected = portable::route::<Flex>(down.clone(), below.clone(), scale.clone(), weights(), options);
        let chosen = |x: FlexTensor| x.into_data().iter::<i64>().collect::<Vec<_>>();
        let (state, probability, expert, weight) = expected;
        let (state, probability, weight) = (floats(state), floats(probability), floats(weight));
        let expert = chosen(expert);
        let shift = floats(vector(experts, 8));
        for isa in Isa::available() {
            let got = router::route(isa, down.clone(), below.clone(), scale.clone(), weights(), options);
            close(&floats(got.0), &state, 4)?;
            close(&floats(got.1), &probability, 16 * (width + hidden))?;
            let close_call = probability.chunks(experts).any(|p| {
                let mut scores: Vec<f32> = p.iter().zip(&shift).map(|(p, s)| p + s * sign).collect();
                scores.sort_by(f32::total_cmp);
                scores.windows(2).any(|pair| pair[1] - pair[0] < 1e-3)
            });
            if !close_call {
                prop_assert_eq!(chosen(got.2), expert.clone());
                close(&floats(got.3), &weight, 16 * (width + hidden))?;
            }
        }
    }
}

#[test]
fn the_lowest_of_equal_experts_is_chosen() {
    let zeros = |n: usize| FlexTensor::from_data(TensorData::new(vec![0.0f32; n], [n]));
    let matrix = |n: usize| FlexTensor::from_data(TensorData::new(vec![0.0f32; 2 * n], [n, 2]));
    let weights = || RouterWeights::<Flex> {
        bias: zeros(2),
        norm: zeros(2),
        first: matrix(2),
        first_bias: zeros(2),
        second: matrix(2),
        second_bias: zeros(2),
        last: matrix(3),
        balancing: zeros(3),
    };
    let options = RouterOptions {
        eps: 1e-5,
        sign: 1.0,
        top_k: 2,
    };
    let down = FlexTensor::from_data(TensorData::new(vec![1.0f32; 2], [1, 2]));
    for isa in Isa::available() {
        let (_, _, expert, weight) =
            router::route(isa, down.clone(), None, None, weights(), options);
        assert_eq!(expert.into_data().iter::<i64>().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(floats(weight), [1.0 / 3.0; 2]);
    }
}
