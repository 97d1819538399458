//! `zonos generate`: prompt rows to codes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use zonos_audio::{AtomicFile, npy};
use zonos_kernels::Activations;
use zonos_tts::{EndReason, end_name};
use zonos2::{GenerateOptions, random_seed};

use crate::args::{ActivationArgs, DeviceArgs, GlobalArgs, ModelArgs, SamplingArgs, VoiceArgs};
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Stepping};
use crate::progress::{DAC_FRAME_SECONDS, FrameBar, Rate};
use crate::{output, rows, weights};

/// Arguments of `zonos generate`.
#[derive(Debug, Args)]
#[command(after_help = "\
CODES.npy is [frames, 9] <i4. Without --sheared: one row a codec frame, cut at the end of speech,
markers clamped; ready for `zonos dac decode`. With --sheared: the rows as sampled, codebook c
delayed by c rows, markers 1024 and 1025 included, and CODES.npy.eos.npy with the frame at which
speech ends, [1] <i4, -1 for none.

Neither the length bound nor the loop breaker of `zonos tts` applies here: only --max-frames and the
model's context end a speech that the model does not.

Example:
  zonos prompt \"Hello, world.\" ids.npy --model zonos2
  zonos generate ids.npy codes.npy --model zonos2 --greedy --max-frames 400
  zonos dac decode codes.npy hello.wav --model hub:descript/dac_44khz")]
pub(crate) struct GenerateArgs {
    /// Prompt rows, [rows, 10] whole numbers, as `zonos prompt` writes them.
    #[arg(value_name = "IDS.npy")]
    ids: PathBuf,
    /// File to write.
    #[arg(value_name = "CODES.npy")]
    codes: PathBuf,
    /// Write the rows as sampled, delayed, with the end of speech in CODES.npy.eos.npy.
    #[arg(long)]
    sheared: bool,
    /// Run the whole sequence again for every frame instead of keeping keys and values; slow, the
    /// same codes.
    #[arg(long)]
    recompute: bool,
    /// Go on after the end of speech, until --max-frames or the context ends it.
    #[arg(long)]
    ignore_eos: bool,
    /// Also write the prompt rows and the rows generated, [rows, 10] <f4, for `zonos perplexity`.
    #[arg(long, value_name = "ALL.npy")]
    dump_ids: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    activations: ActivationArgs,
    #[command(flatten)]
    voice: VoiceArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Runs the command.
pub(crate) fn run(args: &GenerateArgs, global: &GlobalArgs) -> Outcome {
    let device = args.device.open()?;
    let eos_file = eos_path(&args.codes);
    let mut files = vec![("CODES.npy", args.codes.as_path())];
    if args.sheared {
        files.push(("CODES.npy.eos.npy", &eos_file));
    }
    files.extend(args.dump_ids.as_deref().map(|path| ("--dump-ids", path)));
    let outputs = files.len();
    files.push(("IDS.npy", &args.ids));
    output::distinct(&files)?;
    // A voice may be the prompt file for all that it matters, but no output.
    let voice = args.voice.resolve()?;
    if let Some(voice) = &voice {
        files[outputs] = voice.input();
        output::distinct(&files)?;
    }
    output::check_file(&args.codes)?;
    if args.sheared {
        output::check_file(&eos_file)?;
    }
    if let Some(path) = &args.dump_ids {
        output::check_file(path)?;
    }
    let (checkpoint, config) = weights::open_backbone(&args.model.model, global.quiet)?;
    output::spares(&checkpoint, &args.model.model, &files[..outputs])?;
    let speaker = voice
        .as_ref()
        .map(|voice| voice.load(&config))
        .transpose()?;
    let sequence = rows::read_rows(&args.ids, &config, speaker)?;
    let prompt_rows = sequence.len(config.row_width());
    let room = config.max_seqlen - prompt_rows;
    if room == 0 {
        return Err(Failure::failed(format!(
            "{}: {prompt_rows} rows fill the model's {} positions; no room to generate",
            args.ids.display(),
            config.max_seqlen
        )));
    }
    let max_frames = args
        .sampling
        .max_frames
        .map_or(room, |n| room.min(n as usize));
    let seed = args.sampling.seed.unwrap_or_else(random_seed);
    if args.sampling.seed.is_none() && !args.sampling.greedy {
        output::note(
            global.quiet || global.json,
            format_args!("seed {seed} (none was given)"),
        );
    }
    let options = GenerateOptions {
        sampler: args.sampling.options(),
        seed,
        max_frames: args.sampling.max_frames.map(|n| n as usize),
        ignore_eos: args.ignore_eos,
        limits: None,
        recompute: args.recompute,
        ..GenerateOptions::default()
    };
    let model = weights::load_backbone(&checkpoint, config, &device)?;
    let model = if args.activations.exact {
        model.with_activations(Activations::Exact)
    } else {
        model
    };

    let _stepping = Stepping::begin();
    let began = Instant::now();
    let bar = FrameBar::new(
        global.quiet,
        "generating",
        max_frames as u64,
        DAC_FRAME_SECONDS,
    );
    let mut done = model.generate(std::slice::from_ref(&sequence), &[options], &mut |frame| {
        bar.at(frame.index as u64 + 1);
        interrupt::go_on()
    })?;
    bar.done();
    interrupt::check()?;
    let elapsed = began.elapsed();
    let generation = done
        .pop()
        .ok_or_else(|| Failure::failed("the model returned no generation"))?;
    let generated = generation.frames.frames();
    let codes = if args.sheared {
        generation.frames.clone()
    } else {
        generation.codec_codes(model.config())
    };
    if codes.frames() == 0 {
        return Err(Failure::failed(format!(
            "the model ended the speech before its first frame (seed {seed}); no codes to write: try another seed, or --sheared for the rows as sampled"
        )));
    }
    let mut written = vec![codes.stage_npy(&args.codes)?];
    if args.sheared {
        let eos = generation.eos_frame.map_or(-1, |frame| frame as i32);
        written.push(npy::stage_i32(&eos_file, &[1], &[eos])?);
    }
    if let Some(path) = &args.dump_ids {
        let all = sequence.followed_by(generation.frames.values(), model.config());
        written.push(rows::stage_rows(path, &all.rows, model.config())?);
    }
    AtomicFile::commit_all(written)?;
    if generation.end == EndReason::FrameLimit || generation.end == EndReason::Context {
        output::note(
            global.quiet,
            format_args!(
                "note: the model did not end the speech; stopped after {generated} frames"
            ),
        );
    }
    if global.json {
        let rate = Rate::of(generated as u64, elapsed, DAC_FRAME_SECONDS);
        output::print_json(&json!({
            "output": args.codes.display().to_string(),
            "dump_ids": args.dump_ids.as_ref().map(|path| path.display().to_string()),
            "seed": seed,
            "greedy": args.sampling.greedy,
            "ended_by": end_name(generation.end),
            "eos_frame": generation.eos_frame,
            "prompt_rows": prompt_rows,
            "generated_rows": generated,
            "frames": codes.frames(),
            "sheared": args.sheared,
            "seconds": elapsed.as_secs_f64(),
            "frames_per_s": rate.frames_per_s,
            "device": args.device.device,
        }))?;
    } else {
        output::note(
            global.quiet,
            format_args!(
                "{}: {} frames, seed {seed}",
                args.codes.display(),
                codes.frames()
            ),
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The file beside sheared codes that holds the frame at which speech ends.
pub(crate) fn eos_path(codes: &Path) -> PathBuf {
    let mut name = codes.as_os_str().to_owned();
    name.push(".eos.npy");
    PathBuf::from(name)
}
