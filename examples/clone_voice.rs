//! Speaks a text in the voice of a recording, and keeps the voice.
//!
//! ```text
//! cargo run --release -p zonos-examples --example clone_voice -- voice.mp3 SPEAKER_ENCODER
//! cargo run --release -p zonos-examples --example clone_voice -- voice.mp3 SPEAKER_ENCODER "Hello." hello.wav MODEL CODEC
//! ```
//!
//! Without a model and a codec the built-in demo model speaks, which makes noise in any voice.

use anyhow::Context;
use zonos::{Device, SpeakerEncoder, SpeechRequest, Tts, TtsBuilder};

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "give a recording and a speaker encoder: voice.mp3 SPEAKER_ENCODER";
    let recording = args.next().context(usage)?;
    let encoder = args.next().context(usage)?;
    let text = args.next().unwrap_or_else(|| "Hello, world.".to_owned());
    let output = args.next().unwrap_or_else(|| "clone_voice.wav".to_owned());

    let device = Device::flex();
    let encoder = SpeakerEncoder::load(encoder, &device)?;
    let (voice, warnings) = encoder.clone_file(&recording)?;
    for warning in warnings {
        eprintln!("{recording}: {warning}");
    }
    voice.save("clone_voice.safetensors")?;

    let builder = TtsBuilder::new(&device);
    let tts: Tts = match (args.next(), args.next()) {
        (Some(model), Some(codec)) => builder.load(model, codec)?,
        _ => builder.demo()?,
    };
    let request = SpeechRequest {
        voice: Some(voice.speaker()),
        ..SpeechRequest::new(text)
    };
    let speech = tts.speak(&request)?;
    speech.waveform.save_wav(&output)?;
    println!(
        "{output}: {:.2} s in the voice of {recording}, kept in clone_voice.safetensors",
        speech.waveform.seconds()
    );
    Ok(())
}
