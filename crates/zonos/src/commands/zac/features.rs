//! `zonos zac features`: what the encoder's teacher makes of a recording.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use zonos_audio::Waveform;
use zonos_audio::resample::ResampleRecipe;
use zonos_checkpoint::LoadOptions;
use zonos_nn::Tap;
use zonos_w2v_bert::{Teacher, TeacherConfig, TeacherSource};
use zonos_zac::MAX_SECONDS;

use super::{MapArgs, Recording, is_numbered, left_over, open_teacher, warn_report};
use crate::args::{DeviceArgs, GlobalArgs, between, whole};
use crate::commands::validate;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Stepping};
use crate::output::{self, Staging};
use crate::weights;

/// Rate that the teacher hears, in Hz.
const RATE: u32 = 16_000;

/// Arguments of `zonos zac features`.
#[derive(Debug, Args)]
#[command(after_help = "\
The recording is averaged to one channel, resampled to 16 kHz and goes through Wav2Vec2-BERT as a whole.
Every tensor on the way becomes DIR/<name>.npy: audio_16000, fbank, fbank_normalised [frames, 80],
input_features [tokens, 160], attention_mask, and hidden0 (the projected input) to hiddenN, the output
of layer N. Floats are <f4, the mask <i4. (The encoder itself hears the recording in lanes of 30 s: for
those tensors see --dump of `zonos zac encode`.)

Examples:
  zonos zac features speech.mp3 features --model zac-1-encoder.safetensors
  zonos zac features speech.mp3 features --model w2v-bert-2.0 --layers 16")]
pub(super) struct FeaturesArgs {
    /// Recording: any sound file, or a .npy file of samples at 44.1 kHz.
    #[arg(value_name = "AUDIO")]
    audio: PathBuf,
    /// Folder to write into; created when it does not exist.
    #[arg(value_name = "DIR")]
    out: PathBuf,
    /// Layers to run [default: those that the model's configuration uses].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<u32>(0, 1024))]
    layers: Option<u32>,
    /// Hear at most so many seconds: every token sees every other, so time grows with their square.
    #[arg(long, value_name = "S", default_value_t = 60.0, allow_negative_numbers = true, value_parser = between(0.1, MAX_SECONDS))]
    max_seconds: f64,
    /// Teacher: a ZAC-1 encoder or Wav2Vec2-BERT itself; a file, a folder or hub:owner/name[@revision].
    #[arg(long, value_name = "FILE|DIR|hub:ID", env = "ZONOS_ZAC_ENCODER", value_parser = NonEmptyStringValueParser::new(), help_heading = "Weights")]
    model: String,
    #[command(flatten)]
    map: MapArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

pub(super) fn run(args: &FeaturesArgs, global: &GlobalArgs) -> Outcome {
    let device = args.device.open()?;
    output::check_folder_or_parent(&args.out)?;
    let recording = Recording::read(&args.audio)?;
    let sound = mono(args, recording)?;
    if sound.samples().iter().all(|&x| x == 0.0) {
        output::note(
            global.quiet,
            format_args!(
                "note: {}: silent, every sample is 0; the features are those of silence",
                args.audio.display()
            ),
        );
    }
    let checkpoint = open_teacher(&args.model, global.quiet)?;
    output::spares(&checkpoint, &args.model, &[("DIR", &args.out)])?;
    let map = args.map.read()?;
    map.check_teacher(&checkpoint)?;
    let names = map.teacher_names();
    let (config, _) = TeacherConfig::from_mapped(&checkpoint, &names)?;
    let layers = args.layers.map_or(config.feature_layer, |n| n as usize);
    let source = TeacherSource {
        layers: Some(layers),
        // The rest of an encoder's file.
        names: names.ignore("codec.*"),
    };
    let options = LoadOptions::default();
    let (teacher, report) = Teacher::load_from(&checkpoint, &source, &options, &device)?;
    warn_report(&report, &[&checkpoint]);
    weights::warn(&report, false);
    interrupt::check()?;

    let began = Instant::now();
    let samples = sound.samples();
    let shown = || args.audio.display().to_string();
    let mut tap = Tap::on();
    let features = teacher
        .features_with(samples, &mut tap)
        .with_context(shown)?;
    teacher
        .forward(&features, layers, &mut tap)
        .with_context(shown)?;
    let elapsed = began.elapsed();

    let _stepping = Stepping::begin();
    let staging = Staging::begin(&args.out)?;
    let mut written = Vec::new();
    let mut files = BTreeSet::new();
    let mut write = |name: &str, data: burn::tensor::TensorData| -> Result<(), Failure> {
        interrupt::check()?;
        let shape: Vec<usize> = data.shape().iter().copied().collect();
        let path = staging.path().join(format!("{name}.npy"));
        output::distinct(&[
            ("AUDIO", &args.audio),
            ("a file of DIR", &args.out.join(format!("{name}.npy"))),
        ])?;
        validate::write(&path, &shape, data)
            .map_err(|error| output::of_target(error, staging.path(), &args.out))?;
        written.push(json!({ "name": name, "shape": shape }));
        files.insert(format!("{name}.npy"));
        Ok(())
    };
    let data = burn::tensor::TensorData::new(samples.to_vec(), [samples.len()]);
    write("audio_16000", data)?;
    for (name, data) in tap.into_records() {
        write(&name, data)?;
    }
    interrupt::check()?;
    staging.commit()?;
    let old = left_over(&args.out, &files, |name| {
        is_numbered(name, "hidden", ".npy")
    });
    if global.json {
        output::print_json(&json!({
            "output": args.out.display().to_string(),
            "seconds": sound.seconds(),
            "tokens": features.tokens(),
            "layers": layers,
            "tensors": written,
            "left_over": old,
            "features_s": elapsed.as_secs_f64(),
            "device": args.device.device,
        }))?;
    } else {
        output::note(
            global.quiet,
            format_args!(
                "{}: {} tensors, {} tokens of {:.2} s of audio through {layers} layers in {:.2} s",
                args.out.display(),
                written.len(),
                features.tokens(),
                sound.seconds(),
                elapsed.as_secs_f64()
            ),
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The recording at the teacher's rate, cut with a warning.
fn mono(args: &FeaturesArgs, recording: Recording) -> Result<Waveform, Failure> {
    let (rate, seconds) = (recording.rate, recording.seconds());
    let keep = (args.max_seconds * f64::from(rate)) as usize;
    let channels = recording.channels.len() as f32;
    let count = recording.channels.first().map_or(0, Vec::len).min(keep);
    let mut mean = vec![0.0; count];
    for channel in &recording.channels {
        for (sum, x) in mean.iter_mut().zip(channel) {
            *sum += x / channels;
        }
    }
    if count as f64 / f64::from(rate) < seconds {
        output::note(
            false,
            format_args!(
                "warning: {}: {seconds:.2} s long, cut to {:.2} s (--max-seconds)",
                args.audio.display(),
                args.max_seconds
            ),
        );
    }
    Ok(Waveform::new(mean, rate).resample(RATE, ResampleRecipe::Functional)?)
}
