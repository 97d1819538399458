//! Codec codes: a table of `[frames, codebooks]` ids.
//!
//! A language model writes codebook `c` of a frame `c` steps late (the "delay pattern"), so that
//! within one step it predicts codes of different frames. [`Codes::shear`] applies that delay and
//! [`Codes::unshear`] takes it back.

use std::path::{Path, PathBuf};

use crate::npy::{self, NpyData, NpyError};

/// Why a table of codes was refused.
#[derive(Debug, thiserror::Error)]
pub enum CodesError {
    /// The number of values is not frames x codebooks, or there is no codebook.
    #[error("codes: {frames} frames of {codebooks} codebooks do not describe {values} values")]
    Size {
        /// Frames.
        frames: usize,
        /// Codebooks.
        codebooks: usize,
        /// Values given.
        values: usize,
    },
    /// The array has another number of axes.
    #[error("{}: expected codes of shape [frames, codebooks], found {shape:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// More columns than the codec has codebooks.
    #[error("codes have {found} columns, but the codec has {codebooks} codebooks{}", if *transposed { "; the table looks transposed, expected [frames, codebooks]" } else { "" })]
    Columns {
        /// Columns of the table.
        found: usize,
        /// Codebooks of the codec.
        codebooks: usize,
        /// Whether the other axis would fit.
        transposed: bool,
    },
    /// A value outside its codebook.
    #[error(
        "code {value} at frame {frame}, codebook {codebook} is out of range; expected 0 to {highest}{}",
        markers_note(markers)
    )]
    Value {
        /// Frame of the value.
        frame: usize,
        /// Codebook of the value.
        codebook: usize,
        /// The value.
        value: i32,
        /// Largest code of that codebook.
        highest: i64,
        /// Other ids that were legal.
        markers: Vec<i32>,
    },
    /// The file could not be read or written.
    #[error(transparent)]
    Npy(#[from] NpyError),
}

fn markers_note(markers: &[i32]) -> String {
    if markers.is_empty() {
        return String::new();
    }
    let list: Vec<String> = markers.iter().map(ToString::to_string).collect();
    format!(" or a marker ({})", list.join(", "))
}

/// What a codec or a language model accepts, for [`Codes::check`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeLimits {
    sizes: Vec<usize>,
    markers: Vec<i32>,
}

impl CodeLimits {
    /// `codebooks` codebooks of `size` entries each.
    pub fn uniform(codebooks: usize, size: usize) -> Self {
        Self::of(vec![size; codebooks])
    }

    /// One codebook for each size.
    pub fn of(sizes: Vec<usize>) -> Self {
        Self {
            sizes,
            markers: Vec::new(),
        }
    }

    /// Also allows these ids, such as end of audio and padding in sheared codes.
    #[must_use]
    pub fn with_markers(mut self, markers: impl IntoIterator<Item = i32>) -> Self {
        self.markers.extend(markers);
        self
    }
}

/// A table of codes, `[frames, codebooks]`, row-major.
///
/// ```
/// use zonos_audio::{CodeLimits, Codes};
/// let codes = Codes::new(3, 2, vec![1, 10, 2, 20, 3, 30])?;
/// let delayed = codes.shear(1025);
/// assert_eq!(delayed.row(0), &[1, 1025]);
/// assert_eq!(delayed.row(1), &[2, 10]);
/// // The last frames of late codebooks do not survive: the length stays the same.
/// assert_eq!(delayed.unshear(1025).values(), &[1, 10, 2, 20, 3, 1025]);
/// assert!(delayed.check(&CodeLimits::uniform(2, 1024)).is_err());
/// assert!(delayed.check(&CodeLimits::uniform(2, 1024).with_markers([1024, 1025])).is_ok());
/// # Ok::<(), zonos_audio::CodesError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Codes {
    frames: usize,
    codebooks: usize,
    values: Vec<i32>,
}

impl Codes {
    /// Stands for a cell without a code.
    pub const MISSING: i32 = -1;

    /// Takes `values` as `[frames, codebooks]`. There may be no frame, but there is a codebook.
    ///
    /// # Errors
    /// The number of values does not match, or `codebooks` is 0.
    pub fn new(frames: usize, codebooks: usize, values: Vec<i32>) -> Result<Self, CodesError> {
        if codebooks == 0 || frames.checked_mul(codebooks) != Some(values.len()) {
            return Err(CodesError::Size {
                frames,
                codebooks,
                values: values.len(),
            });
        }
        Ok(Self {
            frames,
            codebooks,
            values,
        })
    }

    /// Joins rows of equal length.
    ///
    /// # Errors
    /// A row of another length than `codebooks`, or `codebooks` is 0.
    pub fn from_rows<R: AsRef<[i32]>>(
        codebooks: usize,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<Self, CodesError> {
        let (mut frames, mut values) = (0, Vec::new());
        for row in rows {
            let row = row.as_ref();
            if row.len() != codebooks {
                return Err(CodesError::Size {
                    frames: 1,
                    codebooks,
                    values: row.len(),
                });
            }
            frames += 1;
            values.extend_from_slice(row);
        }
        Self::new(frames, codebooks, values)
    }

    /// Rows of the table.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Columns of the table.
    pub fn codebooks(&self) -> usize {
        self.codebooks
    }

    /// Whether there is no frame.
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// The codes of frame `t`; empty when there is no such frame.
    pub fn row(&self, t: usize) -> &[i32] {
        if t >= self.frames {
            return &[];
        }
        &self.values[t * self.codebooks..(t + 1) * self.codebooks]
    }

    /// The frames in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[i32]> {
        self.values.chunks_exact(self.codebooks)
    }

    /// All codes, `[frames, codebooks]` row-major.
    pub fn values(&self) -> &[i32] {
        &self.values
    }

    /// Gives the values back.
    pub fn into_values(self) -> Vec<i32> {
        self.values
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// The row has another length.
    pub fn push(&mut self, row: &[i32]) -> Result<(), CodesError> {
        if row.len() != self.codebooks {
            return Err(CodesError::Size {
                frames: 1,
                codebooks: self.codebooks,
                values: row.len(),
            });
        }
        self.values.extend_from_slice(row);
        self.frames += 1;
        Ok(())
    }

    /// Delays codebook `c` by `c` frames: `out[t][c] = in[t - c][c]`, or `pad` before the start.
    ///
    /// The number of frames stays, so the last `c` codes of codebook `c` are lost.
    pub fn shear(&self, pad: i32) -> Self {
        self.shifted(pad, usize::checked_sub)
    }

    /// Takes the delay back: `out[t][c] = in[t + c][c]`, or `pad` after the end.
    pub fn unshear(&self, pad: i32) -> Self {
        self.shifted(pad, usize::checked_add)
    }

    fn shifted(&self, pad: i32, source: impl Fn(usize, usize) -> Option<usize>) -> Self {
        let values = (0..self.frames)
            .flat_map(|t| (0..self.codebooks).map(move |c| (t, c)))
            .map(|(t, c)| {
                source(t, c)
                    .filter(|&from| from < self.frames)
                    .map_or(pad, |from| self.values[from * self.codebooks + c])
            })
            .collect();
        Self { values, ..*self }
    }

    /// Keeps at most the first `frames` frames.
    #[must_use]
    pub fn truncate(mut self, frames: usize) -> Self {
        self.frames = self.frames.min(frames);
        self.values.truncate(self.frames * self.codebooks);
        self
    }

    /// Replaces codes above `highest` by `highest`, as the codec does with markers that are left.
    #[must_use]
    pub fn clamp_above(mut self, highest: i32) -> Self {
        for v in &mut self.values {
            *v = (*v).min(highest);
        }
        self
    }

    /// Checks the number of columns and every value. Fewer columns than codebooks are fine: a
    /// residual codec decodes its first codebooks alone.
    ///
    /// # Errors
    /// Too many columns, or the first value that is neither in its codebook nor a marker.
    pub fn check(&self, limits: &CodeLimits) -> Result<(), CodesError> {
        if self.codebooks > limits.sizes.len() {
            return Err(CodesError::Columns {
                found: self.codebooks,
                codebooks: limits.sizes.len(),
                transposed: self.frames > 0 && self.frames <= limits.sizes.len(),
            });
        }
        for (frame, row) in self.rows().enumerate() {
            for (codebook, (&value, &size)) in row.iter().zip(&limits.sizes).enumerate() {
                let coded = usize::try_from(value).is_ok_and(|v| v < size);
                if !coded && !limits.markers.contains(&value) {
                    return Err(CodesError::Value {
                        frame,
                        codebook,
                        value,
                        highest: size as i64 - 1,
                        markers: limits.markers.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Reads `[frames, codebooks]` from a `.npy` file of any number type; floats within
    /// [`npy::INTEGER_TOLERANCE`] of an integer are rounded (see [`npy::NpyArray::to_i32`] on half
    /// floats), truth values are no codes.
    ///
    /// # Errors
    /// A file that is no such table. Ranges are not checked here; see [`check`](Self::check).
    pub fn load_npy(path: impl AsRef<Path>) -> Result<Self, CodesError> {
        let path = path.as_ref();
        let table = |shape: &[usize]| match *shape {
            [frames, codebooks] if codebooks > 0 => Ok((frames, codebooks)),
            _ => Err(CodesError::Shape {
                path: path.to_path_buf(),
                shape: shape.to_vec(),
            }),
        };
        // The header alone tells whether the data are worth reading.
        table(&npy::read_shape(path)?)?;
        let array = npy::read(path)?;
        let (frames, codebooks) = table(array.shape())?;
        if matches!(array.data(), NpyData::Bool(_)) {
            let problem = "expected numbers, found truth values (bool), which are no codes";
            return Err(NpyError::format(path, "descr", problem).into());
        }
        Self::new(frames, codebooks, array.to_i32()?)
    }

    /// Writes `[frames, codebooks]` as `<i4`, complete or not at all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_npy(&self, path: impl AsRef<Path>) -> Result<(), CodesError> {
        Ok(self
            .stage_npy(path)?
            .commit()
            .map_err(npy::NpyError::from)?)
    }

    /// As [`save_npy`](Self::save_npy), but leaves the commit to the caller, for files that belong
    /// together; see [`AtomicFile::commit_all`](crate::AtomicFile::commit_all).
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn stage_npy(&self, path: impl AsRef<Path>) -> Result<crate::AtomicFile, CodesError> {
        Ok(npy::stage_i32(
            path,
            &[self.frames, self.codebooks],
            &self.values,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        assert!(Codes::new(2, 3, vec![0; 5]).is_err());
        assert!(Codes::new(0, 0, vec![]).is_err());
        assert!(Codes::new(usize::MAX, 2, vec![]).is_err());
        let mut codes = Codes::new(0, 3, vec![]).unwrap();
        assert!(codes.is_empty() && codes.row(0).is_empty());
        codes.push(&[1, 2, 3]).unwrap();
        assert!(codes.push(&[1]).is_err());
        assert_eq!((codes.frames(), codes.row(0)), (1, &[1, 2, 3][..]));
        assert!(Codes::from_rows(2, [[1, 2], [3, 4]]).is_ok());
        assert!(Codes::from_rows(3, [[1, 2]]).is_err());
    }

    #[test]
    fn limits() {
        let codes = Codes::new(2, 2, vec![0, 9, 10, 3]).unwrap();
        assert!(codes.check(&CodeLimits::uniform(2, 11)).is_ok());
        assert!(codes.check(&CodeLimits::uniform(9, 11)).is_ok());
        assert!(codes.check(&CodeLimits::of(vec![11, 10])).is_ok());
        let e = codes
            .check(&CodeLimits::of(vec![10, 10]))
            .unwrap_err()
            .to_string();
        assert!(
            e.contains("10 at frame 1, codebook 0") && e.contains("0 to 9"),
            "{e}"
        );
        assert!(
            codes
                .check(&CodeLimits::of(vec![10, 10]).with_markers([10, 11]))
                .is_ok()
        );
        let missing = Codes::new(1, 1, vec![Codes::MISSING]).unwrap();
        assert!(missing.check(&CodeLimits::uniform(1, 10)).is_err());
        assert!(
            missing
                .check(&CodeLimits::uniform(1, 10).with_markers([Codes::MISSING]))
                .is_ok()
        );
        let wide = Codes::new(2, 9, vec![0; 18]).unwrap();
        let e = wide
            .check(&CodeLimits::uniform(2, 10))
            .unwrap_err()
            .to_string();
        assert!(e.contains("9 columns") && e.contains("transposed"), "{e}");
    }

    #[test]
    fn files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("codes.npy");
        let codes = Codes::new(2, 3, vec![1, 2, 3, 1023, 1025, -1]).unwrap();
        codes.save_npy(&path).unwrap();
        assert_eq!(Codes::load_npy(&path).unwrap(), codes);
        npy::write_f32(&path, &[1, 3], &[1.0004, 2.0, 1025.0]).unwrap();
        assert_eq!(Codes::load_npy(&path).unwrap().values(), &[1, 2, 1025]);
        npy::write_f32(&path, &[1, 2], &[1.0, 2.4]).unwrap();
        let e = Codes::load_npy(&path).unwrap_err().to_string();
        assert!(
            e.contains("codes.npy") && e.contains("[0, 1]") && e.contains("2.4"),
            "{e}"
        );
        npy::write_i32(&path, &[4], &[1, 2, 3, 4]).unwrap();
        let e = Codes::load_npy(&path).unwrap_err().to_string();
        assert!(
            e.contains("[frames, codebooks]") && e.contains("[4]"),
            "{e}"
        );
        npy::write_i32(&path, &[4, 0], &[]).unwrap();
        assert!(Codes::load_npy(&path).is_err());
        npy::write_i32(&path, &[0, 9], &[]).unwrap();
        assert_eq!(Codes::load_npy(&path).unwrap().frames(), 0);
    }

    proptest! {
        #[test]
        fn shear_round_trip(frames in 0_usize..40, codebooks in 1_usize..12, pad in -1_i32..2000) {
            let values = (0..frames * codebooks).map(|i| i as i32 + 5000).collect();
            let codes = Codes::new(frames, codebooks, values).unwrap();
            let back = codes.shear(pad).unshear(pad);
            prop_assert_eq!(back.frames(), frames);
            for t in 0..frames {
                for c in 0..codebooks {
                    let kept = t + c < frames;
                    prop_assert_eq!(back.row(t)[c], if kept { codes.row(t)[c] } else { pad });
                }
            }
        }

        #[test]
        fn truncation_and_clamp(frames in 0_usize..20, keep in 0_usize..30) {
            let codes = Codes::new(frames, 3, vec![7; frames * 3]).unwrap();
            let cut = codes.truncate(keep).clamp_above(4);
            prop_assert_eq!(cut.frames(), frames.min(keep));
            prop_assert_eq!(cut.values().len(), cut.frames() * 3);
            prop_assert!(cut.values().iter().all(|&v| v == 4));
        }
    }
}
