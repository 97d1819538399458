//! Encodes a recording into codes, decodes them again, and says how much is left.
//!
//! ```text
//! cargo run --release -p zonos-examples --example codec_roundtrip
//! cargo run --release -p zonos-examples --example codec_roundtrip -- speech.flac again.wav dac.safetensors
//! ```
//!
//! Without arguments, a chord goes through the built-in demo codec, whose random weights make noise
//! of it.

use zonos::decode::{DecodeLimits, decode_file};
use zonos::{Dac, Device, Waveform, demo::DemoCheckpoint};

/// Two seconds of A major.
fn chord() -> Waveform {
    let tone = |t: f32, hertz: f32| (std::f32::consts::TAU * hertz * t).sin();
    let sample = |i: u16| {
        let t = f32::from(i) / 22_050.0;
        let notes = [220.0, 277.18, 329.63].map(|hertz| tone(t, hertz));
        0.2 * notes.iter().sum::<f32>()
    };
    Waveform::new((0..44_100).map(sample).collect(), 22_050)
}

fn main() -> anyhow::Result<()> {
    let demo = DemoCheckpoint::create()?;
    let mut args = std::env::args().skip(1);
    let audio = match args.next() {
        Some(path) => decode_file(path, &DecodeLimits::default())?.to_mono(),
        None => chord(),
    };
    let output = args
        .next()
        .unwrap_or_else(|| "codec_roundtrip.wav".to_owned());
    let codec = match args.next() {
        Some(path) => Dac::load(path, &Device::flex())?,
        None => Dac::load(demo.codec(), &Device::flex())?,
    };

    // Audio of any rate goes in; all codes a frame, then the first one, two, four of them.
    let all = codec.config().n_codebooks;
    for codebooks in [1, 2, 4, all] {
        let there_and_back = codec.roundtrip(&audio, Some(codebooks.min(all)))?;
        let codes = &there_and_back.codes;
        let kilobits = codes.values().len() as f64 * (codec.config().codebook_size as f64).log2()
            / there_and_back.original.seconds()
            / 1e3;
        match there_and_back.snr_db() {
            Some(snr) => println!("{codebooks} codes a frame, {kilobits:.2} kbit/s: {snr:.2} dB"),
            None => println!("{codebooks} codes a frame, {kilobits:.2} kbit/s: silence"),
        }
        if codebooks == all {
            there_and_back.decoded.save_wav(&output)?;
        }
    }
    println!("{output}: {:.2} s", audio.seconds());
    Ok(())
}
