//! A checkpoint in another container: same names, dtypes, values and metadata.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc;

use crate::compose::{Part, compose};
use crate::opened::pack_metadata;
use crate::output::{persist, temporary_beside};
use crate::safetensors::dtype_name;
use crate::tensor::Entry;
use crate::{Checkpoint, CheckpointError};

/// How far a conversion is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConvertProgress {
    /// The tensor being written.
    pub name: String,
    /// Tensors written before it.
    pub tensors_done: usize,
    /// All tensors.
    pub tensors: usize,
    /// Bytes written so far, of all tensors.
    pub bytes_done: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
}

/// Writes `checkpoint` to `out`, whose ending chooses the format: `.safetensors` or `.bpk`.
///
/// Names, dtypes, values and metadata are kept. `params.json` and `config.json` beside the
/// checkpoint are packed into the metadata, where [`Checkpoint::sidecar`] finds them again, so the
/// result is complete by itself. Tensors are streamed from the mapped input, one at a time. The
/// output appears whole or not at all.
///
/// In `.safetensors` wide dtypes come before narrow ones, so that every tensor is aligned; `.bpk`
/// orders names alphabetically.
///
/// # Errors
///
/// When the ending is another, `out` is one of the input's files, a dtype cannot be expressed, or
/// writing fails.
pub fn convert(checkpoint: &Checkpoint, out: impl AsRef<Path>) -> Result<(), CheckpointError> {
    convert_with(checkpoint, out, &mut |_| {})
}

/// [`convert`], calling `progress` before every tensor, and within large ones where the format
/// allows it.
///
/// # Errors
///
/// As [`convert`].
pub fn convert_with(
    checkpoint: &Checkpoint,
    out: impl AsRef<Path>,
    progress: &mut dyn FnMut(&ConvertProgress),
) -> Result<(), CheckpointError> {
    convert_until(checkpoint, out, &mut |now| {
        progress(now);
        ControlFlow::Continue(())
    })
}

/// [`convert_with`] that ends when `progress` says so; then nothing is left, neither a new file nor
/// a temporary one, and an old file of that name is as it was.
///
/// `progress` is asked before every tensor, and in `.safetensors` every 16 MiB.
///
/// # Errors
///
/// As [`convert`]; [`CheckpointError::Stopped`] after [`ControlFlow::Break`].
pub fn convert_until(
    checkpoint: &Checkpoint,
    out: impl AsRef<Path>,
    progress: &mut dyn FnMut(&ConvertProgress) -> ControlFlow<()>,
) -> Result<(), CheckpointError> {
    let out = out.as_ref();
    let refuse = |reason: &str| CheckpointError::Output {
        path: out.into(),
        reason: reason.into(),
    };
    if let Ok(target) = out.canonicalize() {
        if target.is_dir() {
            return Err(refuse("is a folder; give the name of the file to write"));
        }
        let same = |input: &Path| input.canonicalize().is_ok_and(|i| i == target);
        if checkpoint.files().iter().any(|f| same(f)) {
            return Err(refuse("is the input itself; write to another file"));
        }
    }
    let metadata = pack_metadata(checkpoint.metadata(), &checkpoint.sidecars()?);
    let ending = out.extension().and_then(|e| e.to_str());
    match ending.map(str::to_ascii_lowercase).as_deref() {
        Some("safetensors") => write_safetensors(checkpoint, metadata, out, progress),
        Some("bpk") => write_burnpack(checkpoint, metadata, out, progress),
        _ => Err(refuse(
            "the ending must be .safetensors or .bpk, it chooses the format",
        )),
    }
}

/// Keeps count for the progress callback.
pub(crate) struct Counter {
    tensors: usize,
    bytes: u64,
    tensors_done: usize,
    bytes_done: u64,
}

impl Counter {
    fn new(checkpoint: &Checkpoint) -> Self {
        Self::of(checkpoint.len(), checkpoint.total_bytes())
    }

    pub(crate) fn of(tensors: usize, bytes: u64) -> Self {
        Self {
            tensors,
            bytes,
            tensors_done: 0,
            bytes_done: 0,
        }
    }

    pub(crate) fn next(&mut self, name: &str, bytes: u64) -> ConvertProgress {
        let now = ConvertProgress {
            name: name.into(),
            tensors_done: self.tensors_done,
            tensors: self.tensors,
            bytes_done: self.bytes_done,
            bytes: self.bytes,
        };
        self.tensors_done += 1;
        self.bytes_done += bytes;
        now
    }
}

fn write_safetensors(
    checkpoint: &Checkpoint,
    mut metadata: Vec<(String, String)>,
    out: &Path,
    progress: &mut dyn FnMut(&ConvertProgress) -> ControlFlow<()>,
) -> Result<(), CheckpointError> {
    // Readers of the transformers family insist on this entry.
    if metadata.iter().all(|(key, _)| key != "format") {
        metadata.push(("format".into(), "pt".into()));
    }
    let entries = checkpoint.entries();
    if let Some(entry) = entries.iter().find(|e| dtype_name(e.info.dtype).is_none()) {
        return Err(CheckpointError::Output {
            path: out.into(),
            reason: format!(
                "safetensors has no dtype for '{}' ({:?}); write a .bpk instead",
                entry.name, entry.info.dtype
            ),
        });
    }
    let parts: Vec<Part<'_>> = entries.iter().map(Part::of).collect();
    compose(&parts, &metadata, out, progress)
}

pub(crate) fn ask(
    progress: &mut dyn FnMut(&ConvertProgress) -> ControlFlow<()>,
    now: &ConvertProgress,
    out: &Path,
) -> Result<(), CheckpointError> {
    match progress(now) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(CheckpointError::Stopped { path: out.into() }),
    }
}

fn write_burnpack(
    checkpoint: &Checkpoint,
    metadata: Vec<(String, String)>,
    out: &Path,
    progress: &mut dyn FnMut(&ConvertProgress) -> ControlFlow<()>,
) -> Result<(), CheckpointError> {
    let temporary = temporary_beside(out)?;
    // Whatever the writer complains about is told of the file that was asked for.
    let failed = |e: String| CheckpointError::Output {
        path: out.into(),
        reason: format!(
            "cannot be written: {}",
            e.replace(
                &*temporary.path().to_string_lossy(),
                &out.display().to_string()
            )
        ),
    };
    let mut entries: Vec<Entry> = checkpoint.entries().to_vec();
    entries.sort_by(|a, b| a.name.cmp(&b.name));

    // The writer asks for one tensor at a time; names travel back so that progress is told here, and
    // nobody taking them ends the writing.
    let (sender, receiver) = mpsc::sync_channel::<(String, u64)>(0);
    let tensors = entries
        .into_iter()
        .map(|entry| {
            let sender = sender.clone();
            let length = entry.value_bytes();
            burn_pack::Tensor::deferred(
                entry.name.clone(),
                entry.info.dtype,
                entry.info.shape.clone(),
                None,
                length,
                move || {
                    sender
                        .send((entry.name.clone(), entry.info.bytes))
                        .map_err(|_| burn_pack::Error::IoError("stopped".into()))?;
                    let data = entry
                        .data()
                        .map_err(|e| burn_pack::Error::IoError(e.to_string()))?;
                    Ok(data.into_parts().0)
                },
            )
        })
        .collect();
    drop(sender);
    let mut writer = burn_pack::Writer::new(tensors)
        .auto_extension(false)
        .overwrite(true);
    for (key, value) in &metadata {
        writer = writer.with_metadata(key, value);
    }
    let mut counter = Counter::new(checkpoint);
    let target = temporary.path();
    std::thread::scope(|scope| {
        let work = scope.spawn(move || writer.write_to_file_in_place(target));
        let mut asked = Ok(());
        for (name, bytes) in receiver {
            asked = ask(progress, &counter.next(&name, bytes), out);
            if asked.is_err() {
                break;
            }
        }
        let done = work.join();
        asked?;
        match done {
            Ok(done) => done.map_err(|e| failed(e.to_string())),
            Err(_) => Err(failed("the writer stopped unexpectedly".into())),
        }
    })?;
    persist(temporary, out)
}
