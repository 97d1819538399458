//! `zonos validate`: every intermediate tensor of a forward pass, as files.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use burn::tensor::TensorData;
use clap::Args;
use serde_json::json;
use zonos_audio::npy;
use zonos_nn::Tap;

use crate::args::{DeviceArgs, GlobalArgs, ModelArgs, VoiceArgs, VoiceFile};
use crate::failure::{Failure, Outcome};
use crate::{interrupt, output, rows, weights};

/// Arguments of `zonos validate`.
#[derive(Debug, Args)]
#[command(after_help = "\
The rows go through the model at once, teacher-forced, and every tensor that it shows becomes
OUTDIR/<key>.npy under the keys of the golden files: input_ids, embedding, emb_norm, layer.N.attn,
layer.N.ffn, layer.N.out, layer.N.router_state, layer.N.router_prob, layer.N.expert, final_hidden,
logits [rows, 9, 1026]. Floats are <f4, ids <i4.

Example:
  zonos prompt \"Hello, world.\" ids.npy --model zonos2
  zonos validate ids.npy out --model zonos2 && ls out")]
pub(crate) struct ValidateArgs {
    /// Rows, [rows, 10] whole numbers: a prompt, or a prompt and generated rows.
    #[arg(value_name = "IDS.npy")]
    ids: PathBuf,
    /// Folder to write into; created when it does not exist.
    #[arg(value_name = "OUTDIR")]
    out: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    voice: VoiceArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Runs the command.
pub(crate) fn run(args: &ValidateArgs, global: &GlobalArgs) -> Outcome {
    let device = args.device.open()?;
    output::check_folder_or_parent(&args.out)?;
    let voice = args.voice.resolve()?;
    let (checkpoint, config) = weights::open_backbone(&args.model.model, global.quiet)?;
    output::spares(&checkpoint, &args.model.model, &[("OUTDIR", &args.out)])?;
    let speaker = voice
        .as_ref()
        .map(|voice| voice.load(&config))
        .transpose()?;
    let sequence = rows::read_rows(&args.ids, &config, speaker)?;
    let model = weights::load_backbone(&checkpoint, config, &device)?;

    let mut tap = Tap::on();
    model.forward(&[sequence], &mut tap)?;
    let records = tap.into_records();
    if records.is_empty() {
        return Err(Failure::failed("the model showed no tensor"));
    }
    let mut inputs = vec![("IDS.npy", args.ids.as_path())];
    inputs.extend(voice.as_ref().map(VoiceFile::input));
    for (name, _) in &records {
        let path = args.out.join(format!("{name}.npy"));
        for input in &inputs {
            output::distinct(&[*input, ("a file of OUTDIR", &path)])?;
        }
    }
    let _stepping = interrupt::Stepping::begin();
    let staging = output::Staging::begin(&args.out)?;
    let mut written = Vec::with_capacity(records.len());
    for (name, data) in records {
        let shape: Vec<usize> = data.shape().iter().copied().collect();
        interrupt::check()?;
        let path = staging.path().join(format!("{name}.npy"));
        write(&path, &shape, data)
            .map_err(|error| output::of_target(error, staging.path(), &args.out))?;
        written.push(json!({ "name": name, "shape": shape }));
    }
    interrupt::check()?;
    staging.commit()?;
    if global.json {
        output::print_json(
            &json!({ "output": args.out.display().to_string(), "tensors": written }),
        )?;
    } else {
        output::note(
            global.quiet,
            format_args!("{}: {} tensors", args.out.display(), written.len()),
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a tensor as `.npy`, floats as `<f4` and integers as `<i4`.
pub(crate) fn write(
    path: &std::path::Path,
    shape: &[usize],
    data: TensorData,
) -> anyhow::Result<()> {
    let failed = || format!("cannot convert the tensor for {}", path.display());
    if data.dtype().is_float() {
        let values: Vec<f32> = data
            .convert::<f32>()
            .try_to_vec()
            .ok()
            .with_context(failed)?;
        npy::write_f32(path, shape, &values)?;
    } else {
        let values: Vec<i32> = data
            .convert::<i32>()
            .try_to_vec()
            .ok()
            .with_context(failed)?;
        npy::write_i32(path, shape, &values)?;
    }
    Ok(())
}
