//! The encoder's part of the codec's goldens.
//!
//! Two correct f32 programs may choose different rows of a codebook where the best two are nearly as
//! good, and everything behind such a choice differs. So codes are compared where the recorded lead
//! (`enc.margin`) of this and every earlier codebook of the frame is above [`MARGIN`], and what
//! depends on codes in the frames whose codes agree.

use burn::tensor::{DType, Tensor, TensorData};
use zonos_audio::{Codes, Waveform};
use zonos_nn::Tap;

use super::{EMBEDDING, STAGE, SUMS, Suite, codes, wave};
use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::Result;
use crate::golden::GoldenFile;
use crate::host::{HostTensor, Values};
use crate::report::SkipReason;

/// The lead, in cosines, that a choice must have to be the same everywhere.
const MARGIN: f64 = 1e-4;
/// Largest error of a recorded lead.
const LEAD: f64 = 1e-5;
/// Codebooks of the keys `enc.n4.*`.
const FEW: usize = 4;

impl Suite<'_> {
    /// `enc.*`: every stage, codes, what they decode to; and the encoder as users run it.
    pub(super) fn encode(&self, checks: &mut Checks<'_>) -> Result<()> {
        let golden = checks.golden();
        if !golden.has("enc.wav") {
            return Ok(());
        }
        if !self.dac.can_encode() {
            skip(checks, |_| true, "the checkpoint holds no encoder");
            return Ok(());
        }
        checks.input("enc.wav", "samples to encode");
        let samples = golden.need("enc.wav")?.to_f32();
        let certain = Certain::read(golden)?;

        let ours = self.compare_encoded(&samples, None, "enc.", &certain, checks)?;
        let rate = self.dac.config().sample_rate as u32;
        let audio = Waveform::new(samples.clone(), rate);
        if golden.has("enc.codes") {
            let windowed = self.dac.encode(&audio, None).map_err(|e| self.fail(e))?;
            let theirs = codes(golden, "enc.codes")?;
            checks.again(
                "windowed",
                "enc.codes",
                &table(&certain.or(&theirs, &windowed)),
                Tolerance::Exact,
            )?;
            if ours == theirs {
                let mut decoded = self.samples(&windowed)?;
                decoded.truncate(samples.len());
                checks.key("enc.recon", &HostTensor::signal(&decoded), wave())?;
            } else {
                let why = "a code within the margin differs, and with it the samples around it";
                skip(checks, |key| key == "enc.recon", why);
            }
        }
        if golden.has("enc.n4.codes") || golden.has("enc.n4.z_q") {
            self.compare_encoded(&samples, Some(FEW), "enc.n4.", &certain, checks)?;
        }
        Ok(())
    }

    /// One whole pass, tapped. Returns the codes.
    fn compare_encoded(
        &self,
        samples: &[f32],
        codebooks: Option<usize>,
        prefix: &str,
        certain: &Certain,
        checks: &mut Checks<'_>,
    ) -> Result<Codes> {
        let golden = checks.golden();
        let mut tap = Tap::on();
        let input = TensorData::new(samples.to_vec(), [1, 1, samples.len()]);
        let input = Tensor::<3>::from_data(input, (&self.request.device, DType::F32));
        let encoded = self.dac.encode_tensor(input, codebooks, &mut tap);
        let encoded = encoded.map_err(|e| self.fail(e))?;
        let rows = HostTensor::from_data(&encoded.codes.into_data()).squeeze_to(2);
        let ours = super::to_codes(
            golden,
            "enc.codes",
            &rows
                .transpose()
                .ok_or_else(|| self.fail("codes without two axes"))?,
        )?;
        let key = format!("{prefix}codes");
        // Without codes to compare with, ours are taken as agreed.
        let theirs = if golden.has(&key) {
            codes(golden, &key)?
        } else {
            ours.clone()
        };
        checks.key(&key, &table(&certain.or(&theirs, &ours)), Tolerance::Exact)?;

        let widths = &self.dac.config().codebook_dim;
        let agreed = Agreed::of(&ours, &theirs);
        for (name, data) in tap.into_records() {
            let Some(stage) = name.strip_prefix("enc.").filter(|s| *s != "codes") else {
                continue;
            };
            // The few codebooks' run repeats the stages of the other.
            if codebooks.is_some() && stage != "z_q" {
                continue;
            }
            let name = format!("{prefix}{stage}");
            let tensor = HostTensor::from_data(&data);
            if let Some(expected) = golden.get(&name)? {
                let actual = tensor.clone().squeeze_to(expected.shape().len());
                // Codebooks whose codes decide about a row of the tensor.
                let behind = |row: usize| match stage {
                    "latents" => codebook_of(widths, row),
                    "margin" => row,
                    "z_q" => ours.codebooks(),
                    _ => 0,
                };
                let actual = blend(&expected, actual, |row, frame| {
                    agreed.first(frame) >= behind(row)
                });
                checks.part(&name, &expected, &actual, tolerance(stage));
            }
            let sums = format!("sum.{name}");
            if golden.has(&sums) {
                if stage == "z_q" && !agreed.everywhere() {
                    let why = "a code within the margin differs, and with it the sums";
                    skip(checks, |key| key == sums, why);
                    continue;
                }
                let actual = HostTensor::list(tensor.three_sums().to_vec());
                checks.key(&sums, &actual, Tolerance::Sums { relative: SUMS })?;
            }
        }
        Ok(ours)
    }
}

fn tolerance(stage: &str) -> Tolerance {
    let max_abs = match stage {
        "padded" => 0.0,
        "z_q" => EMBEDDING,
        "margin" => LEAD,
        _ => STAGE,
    };
    Tolerance::Absolute { max_abs }
}

fn skip(checks: &mut Checks<'_>, which: impl Fn(&str) -> bool, why: &str) {
    let keys: Vec<_> = checks.golden().keys().map(str::to_owned).collect();
    for key in keys {
        let encoder = key.starts_with("enc.") || key.starts_with("sum.enc.");
        if encoder && which(&key) {
            checks.skip(&key, SkipReason::NotApplicable(why.to_owned()));
        }
    }
}

/// The codebook that row `row` of the latents belongs to.
fn codebook_of(widths: &[usize], row: usize) -> usize {
    let mut end = 0;
    let before = widths.iter().take_while(|&&width| {
        end += width;
        end <= row
    });
    before.count()
}

/// `[frames, codebooks]` as the golden has it, `[codebooks, frames]`.
fn table(codes: &Codes) -> HostTensor {
    let rows = HostTensor::rows(codes.codebooks(), codes.values());
    rows.transpose().unwrap_or(rows)
}

/// `actual` where `compared` says so, else what is expected.
fn blend(
    expected: &HostTensor,
    actual: HostTensor,
    compared: impl Fn(usize, usize) -> bool,
) -> HostTensor {
    let &[_, frames] = expected.shape() else {
        return actual;
    };
    if expected.shape() != actual.shape() {
        return actual;
    }
    let (Values::Float(theirs), Values::Float(ours)) = (expected.values(), actual.values()) else {
        return actual;
    };
    let blended = ours.iter().zip(theirs).enumerate();
    let blended = blended.map(|(i, (&ours, &theirs))| {
        if compared(i / frames, i % frames) {
            ours
        } else {
            theirs
        }
    });
    HostTensor::floats(expected.shape().to_vec(), blended.collect()).unwrap_or(actual)
}

/// How many codebooks choose surely, a number a frame.
struct Certain(Option<Vec<usize>>);

impl Certain {
    /// Without recorded leads every choice must be the same.
    fn read(golden: &GoldenFile) -> Result<Self> {
        let Some(margins) = golden.get("enc.margin")? else {
            return Ok(Self(None));
        };
        let &[codebooks, frames] = margins.shape() else {
            return Err(golden.problem("tensor `enc.margin`: expected two axes"));
        };
        let values = margins.to_f64();
        let sure = |t: usize| {
            let leads = (0..codebooks).take_while(|q| values[q * frames + t] > MARGIN);
            leads.count()
        };
        Ok(Self(Some((0..frames).map(sure).collect())))
    }

    /// `ours` where the choice is sure, else `theirs`.
    fn or(&self, theirs: &Codes, ours: &Codes) -> Codes {
        let same = (theirs.frames(), theirs.codebooks()) == (ours.frames(), ours.codebooks());
        let (Some(sure), true) = (&self.0, same) else {
            return ours.clone();
        };
        let q = ours.codebooks();
        let chosen = ours.values().iter().zip(theirs.values()).enumerate();
        let chosen = chosen.map(|(i, (&ours, &theirs))| match sure.get(i / q) {
            Some(&sure) if i % q >= sure => theirs,
            _ => ours,
        });
        Codes::new(ours.frames(), q, chosen.collect()).unwrap_or_else(|_| ours.clone())
    }
}

/// How many of a frame's first codes agree, a number a frame.
struct Agreed {
    first: Vec<usize>,
    codebooks: usize,
}

impl Agreed {
    fn of(ours: &Codes, theirs: &Codes) -> Self {
        let same = |t: usize| {
            let pairs = ours.row(t).iter().zip(theirs.row(t));
            pairs.take_while(|(a, b)| a == b).count()
        };
        let frames = ours.frames().min(theirs.frames());
        Self {
            first: (0..frames).map(same).collect(),
            codebooks: ours.codebooks(),
        }
    }

    fn first(&self, frame: usize) -> usize {
        // Stages before the codes have more columns than there are frames.
        self.first.get(frame).copied().unwrap_or(self.codebooks)
    }

    fn everywhere(&self) -> bool {
        self.first.iter().all(|&n| n == self.codebooks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsure_choices_are_not_compared() {
        let theirs = Codes::new(2, 3, vec![1, 2, 3, 4, 5, 6]).unwrap();
        let ours = Codes::new(2, 3, vec![1, 9, 9, 9, 5, 6]).unwrap();
        let certain = Certain(Some(vec![1, 3]));
        // Frame 0 is sure of its first code only, frame 1 of all, and differs in its first.
        assert_eq!(certain.or(&theirs, &ours).values(), [1, 2, 3, 9, 5, 6]);
        assert_eq!(Certain(None).or(&theirs, &ours), ours);
        let agreed = Agreed::of(&ours, &theirs);
        assert_eq!((agreed.first(0), agreed.first(1)), (1, 0));
        assert!(!agreed.everywhere());
    }

    #[test]
    fn rows_of_latents_belong_to_codebooks() {
        let widths = [4, 8, 4];
        for (row, codebook) in [(0, 0), (3, 0), (4, 1), (11, 1), (12, 2), (15, 2)] {
            assert_eq!(codebook_of(&widths, row), codebook, "{row}");
        }
    }
}
