//! Decodes codec codes into a WAV file, block by block, as a stream would.
//!
//! ```text
//! cargo run --release -p zonos-examples --example decode_codes
//! cargo run --release -p zonos-examples --example decode_codes -- codes.npy out.wav dac.safetensors
//! ```
//!
//! Without arguments, codes made up on the spot go through the built-in demo codec.

use zonos::{Codes, Dac, Device, Waveform, demo::DemoCheckpoint};

fn main() -> anyhow::Result<()> {
    let demo = DemoCheckpoint::create()?;
    let mut args = std::env::args().skip(1);
    let codes = match args.next() {
        Some(path) => Codes::load_npy(path)?,
        None => Codes::new(86, 9, (0..86 * 9).map(|i| (i * 37) % 1024).collect())?,
    };
    let output = args.next().unwrap_or_else(|| "decode_codes.wav".to_owned());
    let codec = match args.next() {
        Some(path) => Dac::load(path, &Device::flex())?,
        None => Dac::load(demo.codec(), &Device::flex())?,
    };

    // Samples come out as soon as the frames after them are there; joined, they are those of
    // `codec.decode(&codes)`.
    let mut stream = codec.stream(20);
    let mut samples = Vec::new();
    for frame in codes.rows() {
        let one = Codes::new(1, codes.codebooks(), frame.to_vec())?;
        samples.extend(stream.push(&one)?);
    }
    samples.extend(stream.flush()?);

    let waveform = Waveform::new(samples, codec.config().sample_rate as u32);
    waveform.save_wav(&output)?;
    println!("{output}: {:.2} s", waveform.seconds());
    Ok(())
}
