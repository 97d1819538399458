//! Weight-normed convolutions over `[batch, channels, time]`, with Snake fused in.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use zonos_kernels::ops;

use crate::Snake;

/// A convolution's weight, effective or in the two factors of weight normalisation.
///
/// Source: Salimans and Kingma 2016, arXiv:1602.07868, without epsilon, norms over all axes but the
/// first.
#[derive(Module, Debug)]
pub enum ConvWeight {
    /// The effective weight.
    Folded(Param<Tensor<3>>),
    /// Length and direction, both trained.
    Factored(WeightFactors),
}

/// `w[i] = g[i] v[i] / |v[i]|`.
#[derive(Module, Debug)]
pub struct WeightFactors {
    /// Lengths `[n, 1, 1]`.
    pub g: Param<Tensor<3>>,
    /// Directions, of the weight's shape `[n, _, taps]`.
    pub v: Param<Tensor<3>>,
}

impl ConvWeight {
    /// An effective weight.
    pub fn folded(weight: Tensor<3>) -> Self {
        Self::Folded(Param::from_tensor(weight))
    }

    /// The factors `g [n, 1, 1]` and `v [n, _, taps]`.
    pub fn factored(g: Tensor<3>, v: Tensor<3>) -> Self {
        Self::Factored(WeightFactors {
            g: Param::from_tensor(g),
            v: Param::from_tensor(v),
        })
    }

    /// The effective weight; differentiable in the factors.
    pub fn value(&self) -> Tensor<3> {
        match self {
            Self::Folded(weight) => weight.val(),
            Self::Factored(WeightFactors { g, v }) => {
                let v = v.val();
                let norm = (v.clone() * v.clone()).sum_dim(2).sum_dim(1).sqrt();
                v * (g.val() / norm)
            }
        }
    }
}

/// Which ends of a tensor are ends of the signal.
///
/// A convolution pads with zeros where the signal ends and nowhere else: at the other ends of a
/// window it gives only the outputs whose inputs are all there, so what a window gives is what the
/// whole signal would have given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edges {
    /// The tensor begins where the signal does.
    pub start: bool,
    /// The tensor ends where the signal does.
    pub end: bool,
}

impl Edges {
    /// The tensor is the whole signal.
    pub const WHOLE: Self = Self {
        start: true,
        end: true,
    };

    /// `at_end` where the signal ends, `inside` elsewhere.
    pub fn choose(self, at_end: usize, inside: usize) -> (usize, usize) {
        let pick = |end| if end { at_end } else { inside };
        (pick(self.start), pick(self.end))
    }
}

/// Convolution at stride 1, padded to keep the length of a whole signal (odd taps).
#[derive(Module, Debug)]
pub struct Conv1d {
    /// `[out, in, taps]`.
    pub weight: ConvWeight,
    /// `[out]`.
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    dilation: usize,
    #[module(skip)]
    padding: usize,
}

impl Conv1d {
    /// `weight [out, in, taps]` with an odd number of taps, `bias [out]`, f32.
    pub fn new(weight: ConvWeight, bias: Tensor<1>, taps: usize, dilation: usize) -> Self {
        let padding = dilation * (taps / 2);
        Self {
            weight,
            bias: Param::from_tensor(bias),
            dilation,
            padding,
        }
    }

    /// Positions that a window loses at an end that is not the signal's.
    pub fn padding(&self) -> usize {
        self.padding
    }

    /// `conv(snake(x)) + residual`, both extras optional: `x [batch, in, time]` -> `[batch, out,
    /// time]`, shorter by [`padding`](Self::padding) at each end that `edges` says is inside the
    /// signal. `residual` has the shape of the result.
    pub fn forward(
        &self,
        x: Tensor<3>,
        snake: Option<&Snake>,
        residual: Option<Tensor<3>>,
        edges: Edges,
    ) -> Tensor<3> {
        ops::snake_conv1d(
            x,
            snake.map(Snake::alpha),
            self.weight.value(),
            self.bias.val(),
            residual,
            self.dilation,
            edges.choose(self.padding, 0),
        )
    }
}

/// Convolution with `taps = 2 stride` that shortens the signal by its stride, a whole signal being
/// padded by `ceil(stride / 2)` zeros at each end: `time` becomes `time / stride` where that is whole
/// and the stride above 1.
#[derive(Module, Debug)]
pub struct StridedConv1d {
    /// `[out, in, 2 stride]`.
    pub weight: ConvWeight,
    /// `[out]`.
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    stride: usize,
}

impl StridedConv1d {
    /// `weight [out, in, 2 stride]`, `bias [out]`, f32.
    pub fn new(weight: ConvWeight, bias: Tensor<1>, stride: usize) -> Self {
        Self {
            weight,
            bias: Param::from_tensor(bias),
            stride,
        }
    }

    /// `conv(snake(x))`, `x [batch, in, time]` -> `[batch, out, ..]`. At an end inside the signal only
    /// the outputs are given whose inputs are all there; a window that begins inside must begin with
    /// the first input of its first output, `ceil(stride / 2)` positions before a multiple of the
    /// stride.
    pub fn forward(&self, x: Tensor<3>, snake: Option<&Snake>, edges: Edges) -> Tensor<3> {
        ops::snake_strided_conv1d(
            x,
            snake.map(Snake::alpha),
            self.weight.value(),
            self.bias.val(),
            self.stride,
            edges.choose(self.stride.div_ceil(2), 0),
        )
    }
}

/// Transposed convolution with `taps = 2 stride`, of which a whole signal loses
/// `ceil(stride / 2)` positions at each end: `time` becomes `time * stride` for an even stride, one
/// less for an odd one.
#[derive(Module, Debug)]
pub struct ConvTranspose1d {
    /// `[in, out, 2 stride]`; weight normalisation runs over the input channels here.
    pub weight: ConvWeight,
    /// `[out]`.
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    stride: usize,
}

impl ConvTranspose1d {
    /// `weight [in, out, 2 stride]`, `bias [out]`, f32.
    pub fn new(weight: ConvWeight, bias: Tensor<1>, stride: usize) -> Self {
        Self {
            weight,
            bias: Param::from_tensor(bias),
            stride,
        }
    }

    /// `x [batch, in, time]` -> `[batch, out, ..]`. At an end inside the signal the outputs that
    /// would need the next input are left out: `stride` positions of the full result are cut there.
    pub fn forward(&self, x: Tensor<3>, snake: Option<&Snake>, edges: Edges) -> Tensor<3> {
        ops::snake_conv_transpose1d(
            x,
            snake.map(Snake::alpha),
            self.weight.value(),
            self.bias.val(),
            self.stride,
            edges.choose(self.stride.div_ceil(2), self.stride),
        )
    }
}
