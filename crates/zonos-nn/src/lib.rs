//! Layers shared by the zonos-burn models.

mod conv;
mod dense;
mod gelu;
mod linear;
mod norm;
pub mod quantize;
mod rotary;
pub mod signal;
mod snake;
mod tap;

pub use conv::{Conv1d, ConvTranspose1d, ConvWeight, Edges, StridedConv1d, WeightFactors};
pub use dense::Dense;
pub use gelu::gelu;
pub use linear::{BiasedLinear, Embedding};
pub use norm::{LayerNorm, RmsNorm, rms_norm};
pub use rotary::{Rotary, RotaryRows};
pub use signal::{Istft, MelSpectrogram, Resample, Stft};
pub use snake::Snake;
pub use tap::Tap;
pub use zonos_kernels::Activation;
