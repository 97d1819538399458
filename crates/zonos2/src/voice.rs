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
    /// The file could not be read.
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
    /// An array that holds no speaker vectors.
    #[error(
        "{name}: shape {shape:?}: expected a speaker vector, [numbers], or [n, numbers] to average, of at most {MAX_DIM} numbers each and {MAX_NUMBERS} in all"
    )]
    Shape {
        /// The file.
        name: String,
        /// The array's shape.
        shape: Vec<usize>,
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
    /// A number that no speaker encoder makes, and that the model would not survive.
    #[error(
        "{name}: number {index} of the speaker vector is {value:e}; expected numbers within -{MAX_VALUE:e} to {MAX_VALUE:e}, so this is no speaker encoder's"
    )]
    TooLarge {
        /// The file, or `speaker vector`.
        name: String,
        /// Position in the vector.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A vector of zeros, which is nobody's voice.
    #[error("{name}: every number of the speaker vector is zero; this is nobody's voice")]
    Zero {
        /// The file, or `speaker vector`.
        name: String,
    },
    /// A blend factor outside 0..=1.
    #[error("voice blend: expected a factor between 0 and 1, found {0}")]
    Factor(f64),
    /// Two vectors that point in opposite directions have no path between them.
    #[error("voice blend: the two vectors point in opposite directions; blend other voices")]
    Opposite,
}

/// Most numbers of one vector.
pub const MAX_DIM: usize = 1 << 16;

/// Largest magnitude in a vector; those of speaker encoders stay below a hundred.
pub const MAX_VALUE: f32 = 1e6;

/// Most numbers of all vectors in a file.
pub const MAX_NUMBERS: usize = 1 << 24;

/// How an array holds speaker vectors: `rows` of them, `dim` numbers each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Vectors, 1 for an array of one axis.
    pub rows: usize,
    /// Numbers in each.
    pub dim: usize,
}

/// Reads a shape as speaker vectors, as the original server does: axes of length 1 do not count, one
/// that is left is the vector, two are rows and numbers. `None` for any other shape, for empty ones,
/// and beyond [`MAX_DIM`] or [`MAX_NUMBERS`].
pub fn layout(shape: &[usize]) -> Option<Rows> {
    let axes: Vec<usize> = shape.iter().copied().filter(|&n| n != 1).collect();
    let (rows, dim) = match axes[..] {
        [] => (1, 1),
        [dim] => (1, dim),
        [rows, dim] => (rows, dim),
        _ => return None,
    };
    let numbers = rows.checked_mul(dim)?;
    ((1..=MAX_NUMBERS).contains(&numbers) && dim <= MAX_DIM).then_some(Rows { rows, dim })
}

/// The mean of rows of `dim` numbers each, summed in f64.
pub fn mean(values: &[f32], dim: usize) -> Vec<f32> {
    let rows = (values.len() / dim.max(1)) as f64;
    (0..dim)
        .map(|i| {
            let column = values.iter().skip(i).step_by(dim);
            (column.map(|&x| f64::from(x)).sum::<f64>() / rows) as f32
        })
        .collect()
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
    /// Another length, or numbers that are not finite or beyond [`MAX_VALUE`].
    pub fn new(values: Vec<f32>, dim: usize) -> Result<Self, VoiceError> {
        Self::named("speaker vector", values, dim)
    }

    /// As [`new`](Self::new), with the file or the voice that errors name.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn named(name: &str, values: Vec<f32>, dim: usize) -> Result<Self, VoiceError> {
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
        if let Some(index) = values.iter().position(|x| x.abs() > MAX_VALUE) {
            return Err(VoiceError::TooLarge {
                name: name.to_string(),
                index,
                value: values[index],
            });
        }
        Ok(Self { values })
    }

    /// Reads a `.npy` file of shape `[dim]`, or `[n, dim]`, whose rows are averaged; see [`layout`].
    /// The header tells whether it is one, so a file of another shape is refused unread.
    ///
    /// # Errors
    /// A file that cannot be read, another shape or length, or numbers that are not finite.
    pub fn load_npy(path: impl AsRef<Path>, dim: usize) -> Result<Self, VoiceError> {
        let path = path.as_ref();
        let name = || path.display().to_string();
        let shape = npy::read_shape(path)?;
        let rows = layout(&shape).filter(|rows| rows.dim == dim);
        let Some(Rows { rows, .. }) = rows else {
            return Err(match layout(&shape) {
                Some(other) => VoiceError::Length {
                    name: name(),
                    expected: dim,
                    found: other.dim,
                },
                None => VoiceError::Shape {
                    name: name(),
                    shape,
                },
            });
        };
        let values = npy::read(path)?.to_f32();
        // Another file may have taken the place of the first.
        if values.len() != rows * dim {
            return Err(VoiceError::Shape {
                name: name(),
                shape: vec![values.len()],
            });
        }
        Self::named(&name(), mean(&values, dim), dim)
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
    SpeakerVector::named("voice blend", values, a.len()).map(SpeakerVector::into_values)
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
        npy::write_f32(&path, &[3], &[1.0, 2.0, -3e37]).unwrap();
        let e = load().unwrap_err().to_string();
        assert!(e.contains("v.npy") && e.contains("-3e37"), "{e}");
        SpeakerVector::new(vec![4.0, 5.0, 6.0], 3)
            .unwrap()
            .save_npy(&path)
            .unwrap();
        assert_eq!(load().unwrap().into_values(), [4.0, 5.0, 6.0]);
    }

    #[test]
    fn shapes() {
        let rows = |rows, dim| Some(Rows { rows, dim });
        assert_eq!(layout(&[5]), rows(1, 5));
        assert_eq!(layout(&[1, 5, 1]), rows(1, 5));
        assert_eq!(layout(&[2, 1, 5]), rows(2, 5));
        assert_eq!(layout(&[]), rows(1, 1));
        for bad in [&[0][..], &[3, 0], &[0, 3], &[2, 2, 3]] {
            assert_eq!(layout(bad), None, "{bad:?}");
        }
        assert_eq!(layout(&[256, MAX_DIM]), rows(256, MAX_DIM));
        assert_eq!(layout(&[257, MAX_DIM]), None);
        assert_eq!(layout(&[usize::MAX, 2]), None);
        assert_eq!(layout(&[MAX_DIM + 1]), None);
    }

    /// A sparse file of 64 GB: reading its data would take the memory that it claims.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_shape_is_refused_before_the_data_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.npy");
        for shape in ["(8000000, 2048)", "(16000000000,)", "(8000, 2000000)"] {
            let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
            let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text.as_bytes());
            std::fs::write(&path, &bytes).unwrap();
            let numbers: u64 = shape
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|n| n.parse::<u64>().ok())
                .product();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len(bytes.len() as u64 + 4 * numbers).unwrap();
            let began = std::time::Instant::now();
            let e = SpeakerVector::load_npy(&path, 2048).unwrap_err();
            assert!(matches!(e, VoiceError::Shape { .. }), "{e}");
            assert!(e.to_string().contains("65536 numbers each"), "{e}");
            assert!(began.elapsed().as_secs_f64() < 1.0, "the data was read");
        }
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
