//! Decoding of real files: what a reference decoder gives, broken files, containers and codecs, headers
//! that lie.

#[path = "decode/containers.rs"]
mod containers;
#[path = "decode/golden.rs"]
mod golden;
#[path = "decode/lies.rs"]
mod lies;
#[path = "decode/wav_kinds.rs"]
mod wav_kinds;
#[path = "decode/write.rs"]
mod write;

use std::path::PathBuf;

use zonos_audio::decode::{DecodeError, DecodeLimits, Decoded, decode_bytes};

fn fixture(name: &str) -> PathBuf {
    let fixtures = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../validation/fixtures/audio"
    );
    PathBuf::from(fixtures).join(name)
}

fn json(name: &str) -> serde_json::Map<String, serde_json::Value> {
    let text = std::fs::read_to_string(fixture(name)).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value.as_object().unwrap().clone()
}

fn bytes(name: &str, bytes: impl Into<Vec<u8>>) -> Result<Decoded, DecodeError> {
    decode_bytes(name, bytes, &DecodeLimits::default())
}
