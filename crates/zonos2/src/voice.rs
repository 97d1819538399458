//! Speaker vectors: loading and blending.

use std::path::Path;

use zonos_audio::npy::{self, NpyError};

/// Keeps the norm of a zero vector away from zero, as in the original.
const NORM_EPS: f64 = 1e-8;

/// Angles below this are blended in a straight line.
const STRAIGHT: f64 = 1e-6;

/// Angles within this of half a turn are refused: the weights grow like its inverse, and the plane
/// to turn in is decided by rounding.
const OPPOSITE: f64 = 1e-3;

/// Why a speaker vector was refused.
#[derive(Debug, thiserror::Error)]
pub enum VoiceError {
    /// The file could not be read or has another shape.
    #[error(transparent)]
    Npy(#[from] NpyError),
    /// A vector of another length than the model takes.
    #[error(
        "{name}: expected a speaker vector of {expected} numbers, found {found}; it belongs to another model"
    )]
    Length {
        /// The file, or `speaker vector`.
        name: String,
        /// Length the model takes.
        expected: usize,
        /// Length found.
        found: usize,
    },
    /// NaN or infinity in the vector.
    #[error("{name}: number {index} of the speaker vector is {value}; expected finite numbers")]
    NonFinite {
        /// The file, or `speaker vector`.
        name: String,
        /// Position in the vector.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A blend factor outside 0..=1.
    #[error("voice blend: expected a factor between 0 and 1, found {0}")]
    Factor(f64),
    /// Two vectors that point in opposite directions have no path between them.
    #[error("voice blend: the two vectors point in opposite directions; blend other voices")]
    Opposite,
}

/// What the model knows of a speaker. Not normalised: its length matters.
///
/// ```
/// use zonos2::SpeakerVector;
/// let a = SpeakerVector::new(vec![1.0, 0.0], 2)?;
/// let b = SpeakerVector::new(vec![0.0, 1.0], 2)?;
/// let middle = a.blend(&b, 0.5)?;
/// assert!((middle.values()[0] - 0.5_f32.sqrt()).abs() < 1e-6);
/// # Ok::<(), zonos2::voice::VoiceError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SpeakerVector {
    values: Vec<f32>,
}

impl SpeakerVector {
    /// Takes a vector for a model whose vectors have `dim` numbers.
    ///
    /// # Errors
    /// Another length, or numbers that are not finite.
    pub fn new(values: Vec<f32>, dim: usize) -> Result<Self, VoiceError> {
        Self::checked("speaker vector", values, dim)
    }

    fn checked(name: &str, values: Vec<f32>, dim: usize) -> Result<Self, VoiceError> {
        if values.len() != dim {
            return Err(VoiceError::Length {
                name: name.to_string(),
                expected: dim,
                found: values.len(),
            });
        }
        if let Some(index) = values.iter().position(|x| !x.is_finite()) {
            return Err(VoiceError::NonFinite {
                name: name.to_string(),
                index,
                value: values[index],
            });
        }
        Ok(Self { values })
    }

    /// Reads a `.npy` file of shape `[dim]`, or `[n, dim]`, whose rows are averaged. Further axes of
    /// length 1 are ignored.
    ///
    /// # Errors
    /// A file that cannot be read, another length, or numbers that are not finite.
    pub fn load_npy(path: impl AsRef<Path>, dim: usize) -> Result<Self, VoiceError> {
        let array = npy::read(path)?;
        let name = array.path().display().to_string();
        // The last axis is the vector even when its length is 1.
        let axes = array.shape();
        let (&found, leading) = axes.split_last().unwrap_or((&1, &[]));
        if leading.iter().filter(|&&n| n != 1).count() > 1 {
            return Err(array.shape_error(format!("[{dim}] or [n, {dim}]")).into());
        }
        if found != dim || array.is_empty() {
            return Err(VoiceError::Length {
                name,
                expected: dim,
                found: if array.is_empty() { 0 } else { found },
            });
        }
        let all = array.to_f32();
        let rows = all.len() / dim;
        let values = (0..dim)
            .map(|i| {
                let sum: f64 = all.iter().skip(i).step_by(dim).map(|&x| f64::from(x)).sum();
                (sum / rows as f64) as f32
            })
            .collect();
        Self::checked(&name, values, dim)
    }

    /// Writes the vector as `<f4` of shape `[dim]`, complete or not at all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_npy(&self, path: impl AsRef<Path>) -> Result<(), VoiceError> {
        Ok(npy::write_f32(path, &[self.values.len()], &self.values)?)
    }

    /// The numbers, `[dim]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Gives the numbers back.
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// Blends towards `other`: 0 is this voice, 1 the other. Spherical, see [`slerp`].
    ///
    /// # Errors
    /// As [`slerp`].
    pub fn blend(&self, other: &Self, t: f64) -> Result<Self, VoiceError> {
        slerp(&self.values, &other.values, t).map(|values| Self { values })
    }
}

/// Spherical interpolation of two vectors of any lengths:
/// `sin((1-t)w)/sin(w) a + sin(tw)/sin(w) b`, where `w` is the angle between them. The vectors enter
/// with their lengths and the result is not rescaled. Nearly parallel vectors are blended in a
/// straight line. Computed in f64.
///
/// # Errors
/// Vectors of different sizes, a factor outside `0..=1`, opposite vectors, or numbers that are not
/// finite.
pub fn slerp(a: &[f32], b: &[f32], t: f64) -> Result<Vec<f32>, VoiceError> {
    if !(0.0..=1.0).contains(&t) {
        return Err(VoiceError::Factor(t));
    }
    if a.len() != b.len() {
        return Err(VoiceError::Length {
            name: "voice blend".to_string(),
            expected: a.len(),
            found: b.len(),
        });
    }
    let dot = |x: &[f32], y: &[f32]| -> f64 {
        x.iter()
            .zip(y)
            .map(|(&x, &y)| f64::from(x) * f64::from(y))
            .sum()
    };
    let norms = (dot(a, a).sqrt() + NORM_EPS) * (dot(b, b).sqrt() + NORM_EPS);
    let angle = (dot(a, b) / norms).clamp(-1.0, 1.0).acos();
    let (wa, wb) = if angle < STRAIGHT {
        (1.0 - t, t)
    } else if std::f64::consts::PI - angle < OPPOSITE {
        return Err(VoiceError::Opposite);
    } else {
        let s = angle.sin();
        (((1.0 - t) * angle).sin() / s, (t * angle).sin() / s)
    };
    let values = a
        .iter()
        .zip(b)
        .map(|(&x, &y)| (wa * f64::from(x) + wb * f64::from(y)) as f32)
        .collect();
    SpeakerVector::checked("voice blend", values, a.len()).map(SpeakerVector::into_values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.npy");
        let load = || SpeakerVector::load_npy(&path, 3);
        npy::write_f32(&path, &[3], &[1.0, 2.0, 3.0]).unwrap();
        assert_eq!(load().unwrap().values(), &[1.0, 2.0, 3.0]);
        npy::write_f32(&path, &[1, 3], &[1.0, 2.0, 3.0]).unwrap();
        assert_eq!(load().unwrap().values(), &[1.0, 2.0, 3.0]);
        npy::write_f32(&path, &[2, 1, 3], &[1.0, 2.0, 3.0, 3.0, 2.0, 2.0]).unwrap();
        assert_eq!(load().unwrap().values(), &[2.0, 2.0, 2.5]);
        npy::write_f32(&path, &[2], &[1.0, 2.0]).unwrap();
        let e = load().unwrap_err().to_string();
        assert!(
            e.contains("v.npy") && e.contains("of 3 numbers, found 2"),
            "{e}"
        );
        npy::write_f32(&path, &[2, 2, 3], &[0.0; 12]).unwrap();
        assert!(load().unwrap_err().to_string().contains("shape"));
        npy::write_f32(&path, &[0, 3], &[]).unwrap();
        assert!(load().is_err());
        npy::write_f32(&path, &[], &[1.0]).unwrap();
        assert!(load().is_err());
        npy::write_f32(&path, &[3], &[1.0, f32::NAN, 3.0]).unwrap();
        assert!(matches!(
            load(),
            Err(VoiceError::NonFinite { index: 1, .. })
        ));
        SpeakerVector::new(vec![4.0, 5.0, 6.0], 3)
            .unwrap()
            .save_npy(&path)
            .unwrap();
        assert_eq!(load().unwrap().into_values(), [4.0, 5.0, 6.0]);
    }

    #[test]
    fn blends() {
        assert!(matches!(
            slerp(&[1.0], &[1.0], 1.5),
            Err(VoiceError::Factor(_))
        ));
        assert!(matches!(
            slerp(&[1.0], &[1.0], f64::NAN),
            Err(VoiceError::Factor(_))
        ));
        assert!(matches!(
            slerp(&[1.0], &[1.0, 2.0], 0.5),
            Err(VoiceError::Length { .. })
        ));
        assert!(matches!(
            slerp(&[1.0, 0.0], &[-2.0, 0.0], 0.5),
            Err(VoiceError::Opposite)
        ));
        assert!(matches!(
            slerp(&[f32::NAN, 0.0], &[1.0, 0.0], 0.5),
            Err(VoiceError::NonFinite { .. })
        ));
        // A zero vector is at right angles to everything.
        let half = slerp(&[0.0, 0.0], &[2.0, 0.0], 0.5).unwrap();
        assert!((half[0] - 2.0_f32.sqrt()).abs() < 1e-6);
        assert_eq!(slerp(&[1.0, 3.0], &[1.0, 3.0], 0.3).unwrap(), [1.0, 3.0]);
        assert!(slerp(&[], &[], 0.5).unwrap().is_empty());
    }
}
