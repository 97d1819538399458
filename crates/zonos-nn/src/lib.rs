//! Layers shared by the zonos-burn models.

mod norm;
mod tap;

pub use norm::{RmsNorm, rms_norm};
pub use tap::Tap;
