//! Decodes ZAC-1 codes as they would arrive, writes each chunk of audio as soon as it is there, and tells
//! how long every chunk took.
//!
//! ```text
//! cargo run --release --example zac_stream -- zac-1-decoder-keep2_plain.safetensors codes.npy 4 > speech.wav
//! ```
//!
//! The number is the frames in a chunk, 67 ms each. Audio comes half a frame behind the codes, and a
//! chunk costs the same whether it is the first or the thousandth.

use std::time::{Duration, Instant};

use anyhow::Context;
use zonos::{Codes, Device, WavStream, ZacDecoder};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [decoder, codes, rest @ ..] = args.as_slice() else {
        anyhow::bail!("usage: zac_stream DECODER CODES.npy [FRAMES] > OUT.wav");
    };
    let chunk: usize = match rest {
        [] => 4,
        [frames, ..] => frames.parse().context("FRAMES is no number")?,
    };
    let decoder = ZacDecoder::load(decoder, &Device::flex())?;
    let codes = Codes::load_npy(codes)?;
    let config = decoder.config();
    let (rate, q) = (config.sample_rate as u32, codes.codebooks());
    let gain = ZacDecoder::output_gain();

    let mut wav = WavStream::new(std::io::stdout().lock(), rate)?;
    let mut write = |samples: Vec<f32>| -> anyhow::Result<usize> {
        let samples: Vec<f32> = samples.into_iter().map(|x| x * gain).collect();
        wav.push(&samples)?;
        Ok(samples.len())
    };
    let mut stream = decoder.stream();
    let (mut slowest, mut spent, mut written) = (Duration::ZERO, Duration::ZERO, 0);
    for (i, rows) in codes.values().chunks(chunk.max(1) * q).enumerate() {
        let codes = Codes::new(rows.len() / q, q, rows.to_vec())?;
        let began = Instant::now();
        let samples = stream.decode(&codes)?;
        let took = began.elapsed();
        slowest = slowest.max(took);
        spent += took;
        let frames = codes.frames();
        let ready = write(samples)?;
        written += ready;
        eprintln!(
            "chunk {i}: {frames} frames, {ready} samples after {:.1} ms",
            took.as_secs_f64() * 1e3
        );
    }
    written += write(stream.flush()?)?;
    drop(wav.finish()?);
    let seconds = written as f64 / f64::from(rate);
    eprintln!(
        "{seconds:.2} s of audio in {:.2} s, slowest chunk {:.1} ms; heard first after {:.1} ms of codes and that",
        spent.as_secs_f64(),
        slowest.as_secs_f64() * 1e3,
        1e3 * chunk as f64 / config.frame_rate()
    );
    Ok(())
}
