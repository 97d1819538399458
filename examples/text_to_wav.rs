//! Speaks a text into a WAV file.
//!
//! ```text
//! cargo run --release -p zonos-examples --example text_to_wav
//! cargo run --release -p zonos-examples --example text_to_wav -- "Hello, world." hello.wav MODEL CODEC
//! ```
//!
//! Without a model and a codec the built-in demo model speaks, which makes noise.

use zonos::{Device, SpeechRequest, Tts};

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let text = args.next().unwrap_or_else(|| "Hello, world.".to_owned());
    let output = args.next().unwrap_or_else(|| "text_to_wav.wav".to_owned());
    let device = Device::flex();
    let tts = match (args.next(), args.next()) {
        (Some(model), Some(codec)) => Tts::load(model, codec, &device)?,
        _ => Tts::demo(&device)?,
    };

    let speech = tts.speak(&SpeechRequest::new(text))?;
    speech.waveform.save_wav(&output)?;
    println!(
        "{output}: {:.2} s, seed {}, ended by {}",
        speech.waveform.seconds(),
        speech.seed,
        speech.ended_by()
    );
    Ok(())
}
