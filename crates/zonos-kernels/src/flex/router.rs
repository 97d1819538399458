//! A router behind its projection down, in one pass: its matrices are small and stay in cache.

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::TensorData;
use burn_flex::FlexTensor;

use super::linear::Dot;
use super::math;
use super::simd::{Isa, Kernel, Simd, dispatch_on};
use super::step::inverse_rms;
use super::weights::{Element, all_f32, contiguous, elements, f32_tensor, with_elements};
use crate::backend::RouterWeights;
use crate::{RouterOptions, portable};

/// Values of the widest vector.
const WIDEST: usize = 16;

/// `z = rmsnorm(state) * norm`.
struct Norm<'a> {
    state: &'a [f32],
    norm: &'a [f32],
    eps: f32,
    z: &'a mut [f32],
}

impl Kernel for Norm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the instruction set is `S`'s.
        let inverse = unsafe { inverse_rms::<S>(self.state, self.eps) };
        for ((z, x), w) in self.z.iter_mut().zip(self.state).zip(self.norm) {
            *z = x * inverse * w;
        }
    }
}

/// `y = W x`, or `gelu(W x + bias)` where there is a bias.
struct Layer<'a, E> {
    /// `[y, x]`
    weight: &'a [E],
    bias: Option<&'a [f32]>,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl<E: Element> Kernel for Layer<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { weight, bias, x, y } = self;
        assert_eq!(weight.len(), x.len() * y.len());
        for (y, weight) in y.iter_mut().zip(weight.chunks_exact(x.len())) {
            // SAFETY: the instruction set is `S`'s.
            *y = unsafe { Dot { weight, input: x }.run::<S>() };
        }
        let Some(bias) = bias else { return };
        for (y, bias) in y.chunks_mut(S::LANES).zip(bias.chunks(S::LANES)) {
            // What is left of a vector goes through the same arithmetic, in a buffer.
            let mut values = [0.0f32; WIDEST];
            for ((value, y), bias) in values.iter_mut().zip(&*y).zip(bias) {
                *value = y + bias;
            }
            // SAFETY: as above; the buffer holds a vector.
            unsafe {
                let gelu = math::gelu::<S>(S::load(values.as_ptr()));
                S::store(values.as_mut_ptr(), gelu);
            }
            y.copy_from_slice(&values[..y.len()]);
        }
    }
}

/// `y = W x` for a weight in any float type.
fn layer(isa: Isa, weight: &FlexTensor, bias: Option<&[f32]>, x: &[f32], y: &mut [f32]) {
    with_elements!(*weight, |weight| dispatch_on(
        isa,
        Layer { weight, bias, x, y }
    ));
}

/// In place.
fn softmax(x: &mut [f32]) {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    for x in &mut *x {
        *x = (*x - largest).exp();
        total += *x;
    }
    for x in x {
        *x /= total;
    }
}

/// See [`SpeechBackend::route`](crate::SpeechBackend::route).
pub(super) fn route(
    isa: Isa,
    down: FlexTensor,
    below: Option<FlexTensor>,
    scale: Option<FlexTensor>,
    weights: RouterWeights<Flex>,
    options: RouterOptions,
) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
    let [rows, width] = down.shape().dims::<2>();
    let experts = weights.balancing.shape()[0];
    let k = options.top_k;
    assert!(
        (1..=experts).contains(&k),
        "route: {k} of {experts} experts"
    );
    let RouterWeights {
        bias,
        norm,
        first,
        first_bias,
        second,
        second_bias,
        last,
        balancing,
    } = &weights;
    let vectors = [&down, bias, norm, first_bias, second_bias, balancing];
    if rows * width == 0 || !all_f32(vectors.into_iter().chain(&below).chain(&scale)) {
        return portable::route::<Flex>(down, below, scale, weights, options);
    }
    let vectors = [bias, norm, first_bias, second_bias, balancing].map(|v| contiguous(v.clone()));
    let [first, second, last] = [first, second, last].map(|w| contiguous(w.clone()));
    let [down, below, scale] = [Some(down), below, scale].map(|x| x.map(contiguous));
    let [bias, norm, first_bias, second_bias, balancing] = vectors.each_ref().map(elements::<f32>);
    let [down, below, scale] = [&down, &below, &scale].map(|x| x.as_ref().map(elements::<f32>));
    assert!(bias.len() == width && norm.len() == width);

    let mut state = down.expect("just wrapped").to_vec();
    for (row, state) in state.chunks_exact_mut(width).enumerate() {
        for (state, bias) in state.iter_mut().zip(bias) {
            *state += bias;
        }
        if let (Some(below), Some(scale)) = (below, scale) {
            let below = &below[row * width..][..width];
            for ((state, below), scale) in state.iter_mut().zip(below).zip(scale) {
                *state += below * scale;
            }
        }
    }
    let mut probability = vec![0.0; rows * experts];
    let mut expert = Vec::with_capacity(rows * k);
    let mut weight = Vec::with_capacity(rows * k);
    let mut z = [width, first_bias.len(), second_bias.len()].map(|n| vec![0.0; n]);
    let [normed, hidden, out] = &mut z;
    let each = state.chunks_exact(width);
    for (state, probability) in each.zip(probability.chunks_exact_mut(experts)) {
        let eps = options.eps;
        let z = &mut *normed;
        dispatch_on(
            isa,
            Norm {
                state,
                norm,
                eps,
                z,
            },
        );
        layer(isa, &first, Some(first_bias), normed, hidden);
        layer(isa, &second, Some(second_bias), hidden, out);
        layer(isa, &last, None, out, probability);
        softmax(probability);
        let chosen = expert.len();
        for _ in 0..k {
            let mut best: Option<(usize, f32)> = None;
            for (e, (p, shift)) in probability.iter().zip(balancing).enumerate() {
                let score = p + shift * options.sign;
                let taken = expert[chosen..].contains(&(e as i32));
                if !taken && best.is_none_or(|(_, most)| score > most) {
                    best = Some((e, score));
                }
            }
            let (e, _) = best.expect("no more are chosen than there are");
            expert.push(e as i32);
            weight.push(probability[e]);
        }
    }
    (
        f32_tensor(state, [rows, width]),
        f32_tensor(probability, [rows, experts]),
        FlexTensor::from_data(TensorData::new(expert, [rows, k])),
        f32_tensor(weight, [rows, k]),
    )
}
