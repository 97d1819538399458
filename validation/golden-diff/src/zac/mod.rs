//! Goldens of ZAC-1: a folder is a decoder's or an encoder's, as its keys tell.

mod decoder;
mod encoder;
mod streams;

use crate::Request;
use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::Result;
use crate::golden::GoldenFile;
use crate::host::HostTensor;

pub(crate) use decoder::{codes, on_device};

pub(crate) fn run(request: &Request, half: bool, checks: &mut Checks<'_>) -> Result<()> {
    if is_decoder(checks.golden()) {
        decoder::run(request, checks)
    } else {
        encoder::run(request, half, checks)
    }
}

fn is_decoder(golden: &GoldenFile) -> bool {
    golden.has("codes") && golden.has("audio_44160")
}

/// Every entry within `share` of the largest of `golden`.
fn of_largest(golden: &HostTensor, share: f64) -> Tolerance {
    let largest = golden
        .to_f64()
        .into_iter()
        .fold(0.0, |m: f64, x| m.max(x.abs()));
    Tolerance::Absolute {
        max_abs: share * largest,
    }
}
