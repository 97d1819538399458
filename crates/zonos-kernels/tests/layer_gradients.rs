//! Gradients of the dense layer, layer normalisation, attention and depthwise convolution against those
//! that Burn works out for the textbook formulas, and the kernels' results against both.

use burn::tensor::module::conv1d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use zonos_kernels::{Activation, ops};

/// Values in [-1, 1) that depend on `seed` alone.
fn values<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn host<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().try_into_vec().expect("f32")
}

/// Largest difference over the largest value.
fn relative(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let largest = theirs.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(largest > 0.0);
    let pairs = ours.iter().zip(theirs);
    pairs.fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / largest
}

/// Inputs of an operation, flat, each with its shape.
type Inputs = Vec<(Vec<f32>, Vec<usize>)>;

fn input<const D: usize>(seed: u64, shape: [usize; D]) -> (Vec<f32>, Vec<usize>) {
    (host(values(seed, shape, &Device::flex())), shape.to_vec())
}

/// Input `i` of those tracked, in its shape.
fn shaped<const D: usize>(tracked: &[Tensor<1>], inputs: &Inputs, i: usize) -> Tensor<D> {
    let shape: [usize; D] = inputs[i].1.clone().try_into().expect("as many axes");
    tracked[i].clone().reshape(shape)
}

/// Checks that `ours` and `formula` agree on an autodiff device, forward within 1e-5 of the largest value
/// and in every gradient, and that `ours` on the plain device, where the kernels run, agrees forward.
fn check(
    what: &str,
    inputs: &Inputs,
    ours: &dyn Fn(&[Tensor<1>]) -> Tensor<1>,
    formula: &dyn Fn(&[Tensor<1>]) -> Tensor<1>,
) {
    let on = |device: &Device, tracked: bool| -> Vec<Tensor<1>> {
        let tensor = |(values, _): &(Vec<f32>, Vec<usize>)| {
            let data = TensorData::new(values.clone(), [values.len()]);
            let x = Tensor::<1>::from_data(data, device);
            if tracked { x.require_grad() } else { x }
        };
        inputs.iter().map(tensor).collect()
    };
    let device = Device::flex().autodiff();
    let tracked = on(&device, true);
    let (a, b) = (ours(&tracked), formula(&tracked));
    let plain = host(ours(&on(&Device::flex(), false)));
    let (forward, expected) = (host(a.clone()), host(b.clone()));
    for (name, got) in [("autodiff", &forward), ("kernel", &plain)] {
        let delta = relative(got, &expected);
        assert!(delta <= 1e-5, "{what}: {name}: {delta:e}");
    }
    let r = values(99, [expected.len()], &device);
    let a = (a * r.clone()).sum().backward();
    let b = (b * r).sum().backward();
    for (i, x) in tracked.iter().enumerate() {
        let [a, b] = [&a, &b].map(|grads| host(x.grad(grads).expect("a gradient")));
        let delta = relative(&a, &b);
        assert!(delta <= 2e-5, "{what}: gradient of input {i}: {delta:e}");
    }
}

fn flat<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let n = x.dims().iter().product::<usize>();
    x.reshape([n])
}

#[test]
fn dense() {
    for activation in [Activation::None, Activation::Gelu, Activation::Silu] {
        let (rows, inner, out) = (7, 19, 11);
        let inputs = vec![
            input(1, [rows, inner]),
            input(2, [out, inner]),
            input(3, [out]),
            input(4, [out]),
            input(5, [rows, out]),
        ];
        let ours = |t: &[Tensor<1>]| {
            let (x, w) = (shaped(t, &inputs, 0), shaped(t, &inputs, 1));
            let (bias, scale) = (Some(t[2].clone()), Some(t[3].clone()));
            let residual = Some(shaped(t, &inputs, 4));
            flat(ops::dense(x, w, bias, activation, scale, residual))
        };
        let formula = |t: &[Tensor<1>]| {
            let (x, w) = (shaped::<2>(t, &inputs, 0), shaped::<2>(t, &inputs, 1));
            let row = |i: usize| t[i].clone().reshape([1, out]);
            let y = x.matmul(w.transpose()) + row(2);
            let y = match activation {
                Activation::None => y,
                Activation::Gelu => y.clone() * ((y / 2f32.sqrt()).erf() + 1.0) / 2.0,
                Activation::Silu => y.clone() / ((-y).exp() + 1.0),
            };
            flat(shaped::<2>(t, &inputs, 4) + y * row(3))
        };
        check(&format!("dense, {activation:?}"), &inputs, &ours, &formula);
    }
}

#[test]
fn layer_norm() {
    let (rows, width) = (5, 37);
    let inputs = vec![
        input(1, [rows, width]),
        input(2, [width]),
        input(3, [width]),
    ];
    let ours = |t: &[Tensor<1>]| {
        let x = shaped(t, &inputs, 0);
        flat(ops::layer_norm(x, t[1].clone(), t[2].clone(), 1e-5))
    };
    let formula = |t: &[Tensor<1>]| {
        let x = shaped::<2>(t, &inputs, 0);
        let row = |i: usize| t[i].clone().reshape([1, width]);
        let away = x.clone() - x.mean_dim(1);
        let variance = (away.clone() * away.clone()).mean_dim(1);
        flat(away / (variance + 1e-5).sqrt() * row(1) + row(2))
    };
    check("layer_norm", &inputs, &ours, &formula);
}

/// Softmax attention with what `hidden [queries, keys]` leaves, `extra` added to the scores.
fn attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    extra: Option<Tensor<4>>,
    hidden: Tensor<4, Bool>,
) -> Tensor<4> {
    let dim = q.dims()[3];
    let [q, k, v] = [q, k, v].map(|x| x.swap_dims(1, 2));
    let scores = q.matmul(k.swap_dims(2, 3));
    let scores = match extra {
        Some(extra) => scores + extra,
        None => scores,
    };
    let scores = (scores / (dim as f32).sqrt()).mask_fill(hidden, f32::MIN);
    let weights = burn::tensor::activation::softmax(scores, 3);
    weights.matmul(v).swap_dims(1, 2)
}

#[test]
fn window_attention() {
    // The last is longer than what the portable body takes at a time.
    for (batch, queries, past, heads, dim, context) in [
        (2, 9, 0, 2, 6, 4),
        (1, 5, 7, 3, 8, 9),
        (2, 4, 3, 1, 5, 100),
        (1, 300, 20, 1, 3, 40),
        (1, 3, 3, 2, 4, 1),
    ] {
        let keys = past + queries;
        let inputs = vec![
            input(1, [batch, queries, heads, dim]),
            input(2, [batch, keys, heads, dim]),
            input(3, [batch, keys, heads, dim]),
        ];
        let ours = |t: &[Tensor<1>]| {
            let [q, k, v] = [0, 1, 2].map(|i| shaped::<4>(t, &inputs, i));
            flat(ops::window_attention(q, k, v, context))
        };
        let formula = |t: &[Tensor<1>]| {
            let [q, k, v] = [0, 1, 2].map(|i| shaped::<4>(t, &inputs, i));
            let hidden: Vec<bool> = (0..queries * keys)
                .map(|at| {
                    let (i, j) = (past + at / keys, at % keys);
                    j > i || i - j >= context
                })
                .collect();
            let data = TensorData::new(hidden, [1, 1, queries, keys]);
            let hidden = Tensor::<4, Bool>::from_data(data, &t[0].device());
            flat(attention(
                q,
                k,
                v,
                None,
                hidden.expand([batch, heads, queries, keys]),
            ))
        };
        if context == 1 {
            // One key: its value, and no gradient to speak of for queries and keys.
            let plain: Vec<Tensor<1>> = inputs
                .iter()
                .map(|(x, _)| {
                    Tensor::from_data(TensorData::new(x.clone(), [x.len()]), &Device::flex())
                })
                .collect();
            let last = queries * heads * dim;
            let delta = relative(
                &host(ours(&plain)),
                &inputs[2].0[inputs[2].0.len() - last..],
            );
            assert!(delta <= 1e-6, "context 1: {delta:e}");
            continue;
        }
        let what = format!("window of {context}, {queries} queries behind {past}");
        check(&what, &inputs, &ours, &formula);
    }
}

#[test]
fn relative_attention() {
    for (batch, time, heads, dim, left, right, masked) in [
        (2, 9, 2, 6, 4, 2, false),
        (1, 12, 3, 8, 20, 3, true),
        (1, 270, 1, 3, 7, 5, true),
    ] {
        let entries = left + right + 1;
        let shape = [batch, time, heads, dim];
        let inputs = vec![
            input(1, shape),
            input(2, shape),
            input(3, shape),
            input(4, [entries, dim]),
        ];
        // The last fifth of the first entry is masked.
        let seen: Vec<f32> = (0..batch * time)
            .map(|at| f32::from(!masked || at / time > 0 || at % time < time - time / 5))
            .collect();
        let ours = |t: &[Tensor<1>]| {
            let [q, k, v] = [0, 1, 2].map(|i| shaped::<4>(t, &inputs, i));
            let data = TensorData::new(seen.clone(), [batch, time]);
            let mask = masked.then(|| Tensor::from_data(data, &t[0].device()));
            let table = shaped(t, &inputs, 3);
            flat(ops::relative_attention(q, k, v, table, left, right, mask))
        };
        let formula = |t: &[Tensor<1>]| {
            let [q, k, v] = [0, 1, 2].map(|i| shaped::<4>(t, &inputs, i));
            let device = t[0].device();
            let entry: Vec<i32> = (0..time * time)
                .map(|at| {
                    let distance = (at % time) as i32 - (at / time) as i32;
                    distance.clamp(-(left as i32), right as i32) + left as i32
                })
                .collect();
            let entry = Tensor::<1, Int>::from_data(TensorData::new(entry, [time * time]), &device);
            let embedded = shaped::<2>(t, &inputs, 3).select(0, entry);
            // [batch, heads, query, 1, dim] times [1, 1, query, key, dim].
            let embedded = embedded.reshape([1, 1, time, time, dim]);
            let queries = q
                .clone()
                .swap_dims(1, 2)
                .reshape([batch, heads, time, 1, dim]);
            let extra = (queries * embedded).sum_dim(4);
            let extra = extra.reshape([batch, heads, time, time]);
            let hidden: Vec<bool> = seen.iter().map(|&seen| seen == 0.0).collect();
            let data = TensorData::new(hidden, [batch, 1, 1, time]);
            let hidden = Tensor::<4, Bool>::from_data(data, &device);
            let hidden = hidden.expand([batch, heads, time, time]);
            flat(attention(q, k, v, Some(extra), hidden))
        };
        let what = format!("relative, {time} positions, {left} left, {right} right");
        check(&what, &inputs, &ours, &formula);
    }
}

#[test]
fn depthwise_conv1d() {
    for (batch, time, channels, taps) in [(2, 9, 5, 7), (1, 30, 17, 31), (2, 3, 4, 1)] {
        let inputs = vec![
            input(1, [batch, time + taps - 1, channels]),
            input(2, [channels, 1, taps]),
            input(3, [channels]),
        ];
        let ours = |t: &[Tensor<1>]| {
            let (x, w) = (shaped(t, &inputs, 0), shaped(t, &inputs, 1));
            flat(ops::depthwise_conv1d(x, w, Some(t[2].clone())))
        };
        let formula = |t: &[Tensor<1>]| {
            let (x, w) = (shaped::<3>(t, &inputs, 0), shaped::<3>(t, &inputs, 1));
            let options = ConvOptions::new([1], [0], [1], channels);
            let y = conv1d(x.swap_dims(1, 2), w, Some(t[2].clone()), options);
            flat(y.swap_dims(1, 2))
        };
        let what = format!("depthwise, {taps} taps, {time} positions");
        check(&what, &inputs, &ours, &formula);
    }
}
