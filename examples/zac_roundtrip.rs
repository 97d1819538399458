//! Encodes a recording with ZAC-1, decodes the codes again, and says what they take and what is left.
//!
//! ```text
//! cargo run --release --example zac_roundtrip -- zac-1-encoder.safetensors \
//!     zac-1-decoder-keep2_plain.safetensors speech.mp3 again.wav
//! ```

use std::ops::ControlFlow;

use anyhow::Context;
use zonos::decode::{DecodeLimits, decode_file};
use zonos::{Device, PrepareOptions, Waveform, ZacDecoder, ZacEncoder, prepare_audio, snr_db};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [encoder, decoder, input, output] = args.as_slice() else {
        anyhow::bail!("usage: zac_roundtrip ENCODER DECODER AUDIO OUT.wav");
    };
    let device = Device::flex();

    // Any sound file: averaged to one channel, 44.1 kHz, peaks above full scale divided by.
    let recording = decode_file(input, &DecodeLimits::default())?;
    let rate = recording.info.sample_rate;
    let original = prepare_audio(&recording.channels, rate, &PrepareOptions::default())
        .with_context(|| input.clone())?;

    // The encoder goes before the decoder comes: it is the larger half.
    let encoder = ZacEncoder::load(encoder, &device)?;
    let codes = encoder.encode_prepared(&original, &mut |progress| {
        eprint!("\rencoding: {} of {} frames", progress.frames, progress.of);
        ControlFlow::Continue(())
    })?;
    eprintln!();
    drop(encoder);

    let bits = 12.0 * codes.values().len() as f64;
    println!(
        "{} frames of {} codes: {:.2} kbit/s, {:.0} times less than 16-bit samples",
        codes.frames(),
        codes.codebooks(),
        bits / original.seconds() / 1e3,
        16.0 * original.len() as f64 / bits
    );
    let decoder = ZacDecoder::load(decoder, &device)?;
    let mut again = decoder.decode(&codes)?.into_samples();
    again.truncate(original.len());
    if let Some(snr) = snr_db(original.samples(), &again) {
        println!("signal to noise {snr:.2} dB (it codes what is heard, not the waveform)");
    }
    // Decoders give more than full scale where the speech is loud; playback level leaves room.
    for x in &mut again {
        *x *= ZacDecoder::output_gain();
    }
    Waveform::new(again, original.sample_rate()).save_wav(output)?;
    println!("{output}: {:.2} s", original.seconds());
    Ok(())
}
