//! Gradients of the shortening convolution against those that Burn works out by itself.

use burn::tensor::module::conv1d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Tensor, TensorData};
use zonos_kernels::ops;

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
    Tensor::from_data(TensorData::new(values, shape), device).require_grad()
}

/// Largest difference over the largest value.
fn relative<const D: usize>(ours: Tensor<D>, theirs: Tensor<D>) -> f32 {
    let ours = ours.into_data().try_to_vec::<f32>().unwrap();
    let theirs = theirs.into_data().try_to_vec::<f32>().unwrap();
    assert_eq!(ours.len(), theirs.len());
    let largest = theirs.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(largest > 0.0);
    let pairs = ours.iter().zip(&theirs);
    pairs.fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / largest
}

/// Even and odd strides, positions left over at the end, unequal padding.
const SHAPES: [(usize, usize, usize, (usize, usize)); 6] = [
    (2, 4, 12, (1, 1)),
    (3, 6, 12, (2, 2)),
    (5, 10, 20, (3, 3)),
    (8, 16, 16, (4, 4)),
    (3, 6, 17, (0, 2)),
    // Taps that are no multiple of the stride take the portable way.
    (2, 5, 13, (2, 2)),
];

#[test]
fn gradients_are_those_of_burns_own_operations() {
    let device = Device::flex().autodiff();
    for (stride, taps, time, padding) in SHAPES {
        let (batch, channels, out) = (2, 5, 7);
        let x = values(1, [batch, channels, time], &device);
        let alpha = values(2, [channels], &device);
        let w = values(3, [out, channels, taps], &device);
        let b = values(4, [out], &device);

        let ours = ops::snake_strided_conv1d(
            x.clone(),
            Some(alpha.clone()),
            w.clone(),
            b.clone(),
            stride,
            padding,
        );
        let a = alpha.clone().reshape([1, channels, 1]);
        let activated = x.clone() + (a.clone() * x.clone()).sin().square() / (a + 1e-9);
        let zeros = |n| Tensor::<3>::zeros([batch, channels, n], &device);
        let mut parts = vec![activated];
        if padding.0 > 0 {
            parts.insert(0, zeros(padding.0));
        }
        if padding.1 > 0 {
            parts.push(zeros(padding.1));
        }
        let options = ConvOptions::new([stride], [0], [1], 1);
        let theirs = conv1d(Tensor::cat(parts, 2), w.clone(), Some(b.clone()), options);

        let shape = ours.dims();
        let r = values(5, shape, &device).detach();
        let (ours, theirs) = (ours * r.clone(), theirs * r);
        let what = format!("stride {stride}, {taps} taps, {time} positions");
        let forward = relative(ours.clone(), theirs.clone());
        assert!(forward <= 1e-5, "{what}: {forward:e}");
        let (ours, theirs) = (ours.sum().backward(), theirs.sum().backward());
        let deltas = [
            relative(x.grad(&ours).unwrap(), x.grad(&theirs).unwrap()),
            relative(alpha.grad(&ours).unwrap(), alpha.grad(&theirs).unwrap()),
            relative(w.grad(&ours).unwrap(), w.grad(&theirs).unwrap()),
            relative(b.grad(&ours).unwrap(), b.grad(&theirs).unwrap()),
        ];
        for (delta, name) in deltas.iter().zip(["x", "alpha", "weight", "bias"]) {
            assert!(*delta <= 1e-5, "{what}: {name}: {delta:e}");
        }
    }
}
