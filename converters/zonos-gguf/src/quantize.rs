//! Converting tensors and files between types: by rows, on all cores, in bounded memory.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;

use rayon::prelude::*;

use crate::blocks::{dequantize_row, quantize_row};
use crate::shown::shown;
use crate::{
    BlockError, GgmlType, GgufError, GgufFile, GgufWriter, Imatrix, NewTensor, Policy, TensorInfo,
    Value,
};

/// Encoded bytes that are collected before they are written.
const CHUNK_BYTES: u64 = 8 << 20;

const FILE_TYPE_KEY: &str = "general.file_type";

/// Why a file could not be quantised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// Reading or writing failed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A tensor cannot be converted.
    #[error("{file}: tensor '{}' ({from} to {to}): {source}", shown(name))]
    Tensor {
        /// The source file.
        file: String,
        /// The tensor.
        name: String,
        /// Its type.
        from: GgmlType,
        /// The type asked for.
        to: GgmlType,
        /// What is wrong.
        source: BlockError,
    },
    /// The progress function asked for the end.
    #[error("stopped before it was complete")]
    Stopped,
}

/// How far a file is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The tensor being converted.
    pub tensor: &'a str,
    /// The type it gets.
    pub to: GgmlType,
    /// Source bytes done, of all tensors.
    pub done: u64,
    /// Source bytes of all tensors.
    pub total: u64,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuantizeReport {
    /// Tensors by their new type: count and bytes, in the order of [`GgmlType`].
    pub types: std::collections::BTreeMap<GgmlType, (usize, u64)>,
    /// Tensor bytes before.
    pub bytes_before: u64,
    /// Tensor bytes after.
    pub bytes_after: u64,
    /// Tensors with rows that hold NaN or infinity, or values too large for the type, whose new values are
    /// not all finite. With the number of such rows. (Some quantisers make numbers of NaN, so the values
    /// themselves are looked at.)
    pub not_finite: Vec<(String, u64)>,
    /// Tensors whose importances have another shape, or that are of the imatrix but not of the file.
    pub importance_unused: Vec<String>,
    /// Tensors that came in a lossy type already and lost more.
    pub requantized: Vec<String>,
}

/// Converts `src`, rows of `row_len` values of type `from`, to type `to`, rows side by side on all
/// cores. `importance` is shared by the rows. Returns how many rows hold or gave a value that is not finite.
///
/// # Errors
/// If a type is listed only, rows are not whole blocks, or lengths do not belong together.
pub fn convert_rows(
    from: GgmlType,
    src: &[u8],
    row_len: usize,
    to: GgmlType,
    importance: Option<&[f32]>,
    dst: &mut [u8],
) -> Result<u64, BlockError> {
    let row_bytes = |t: GgmlType| {
        if !t.is_readable() {
            return Err(BlockError::Unsupported(t));
        }
        let bytes = t.bytes_for(row_len as u64).filter(|&n| n > 0);
        bytes.map(|n| n as usize).ok_or(BlockError::NotWholeBlocks {
            ggml_type: t,
            values: row_len,
            block: t.block_values(),
        })
    };
    let (from_bytes, to_bytes) = (row_bytes(from)?, row_bytes(to)?);
    let rows = src.len() / from_bytes;
    for (t, bytes, found) in [(from, from_bytes, src.len()), (to, to_bytes, dst.len())] {
        if rows * bytes != found {
            return Err(BlockError::Length {
                ggml_type: t,
                values: rows * row_len,
                expected: rows * bytes,
                found,
            });
        }
    }
    // Several short rows make one task.
    let task = (16_384 / row_len).max(1);
    let tasks = src
        .par_chunks(from_bytes * task)
        .zip(dst.par_chunks_mut(to_bytes * task));
    tasks
        .map_init(
            || vec![0.0f32; row_len],
            |values, (src, dst)| {
                let mut bad = 0;
                let rows = src.chunks_exact(from_bytes);
                for (src, dst) in rows.zip(dst.chunks_exact_mut(to_bytes)) {
                    dequantize_row(from, src, values)?;
                    quantize_row(to, values, importance, dst)?;
                    bad += u64::from(!stays_finite(to, values, dst)?);
                }
                Ok(bad)
            },
        )
        .try_reduce(|| 0, |a, b| Ok(a + b))
}

/// Whether the values of a row are finite, and what they were encoded as. Up to the largest half every type
/// is; beyond, it depends on the scale that was found, so the row is decoded again (`values` is overwritten).
/// A block whose squares were too large for the search for a scale became zeros, which counts too.
fn stays_finite(to: GgmlType, values: &mut [f32], row: &[u8]) -> Result<bool, BlockError> {
    // Without an early end, which would keep compilers from taking several values at a time.
    let mild = pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            values
                .iter()
                .fold(true, |mild, v| mild & (v.abs() <= 65_504.0))
        },
    );
    if mild {
        return Ok(true);
    }
    if !values.iter().all(|v| v.is_finite()) {
        return Ok(false);
    }
    let block = to.block_values();
    let beyond: Vec<bool> = values
        .chunks(block)
        .map(|values| values.iter().any(|v| v.abs() > 65_504.0))
        .collect();
    dequantize_row(to, row, values)?;
    let survives = |(values, beyond): (&[f32], bool)| {
        values.iter().all(|v| v.is_finite()) && (!beyond || values.iter().any(|&v| v != 0.0))
    };
    Ok(values.chunks(block).zip(beyond).all(survives))
}

/// How many rows of `row_len` values hold one that is not finite.
fn rows_not_finite(t: GgmlType, src: &[u8], row_len: usize) -> Result<u64, BlockError> {
    let row_bytes = t.bytes_for(row_len as u64).filter(|&n| n > 0);
    let row_bytes = row_bytes.ok_or(BlockError::NotWholeBlocks {
        ggml_type: t,
        values: row_len,
        block: t.block_values(),
    })?;
    src.par_chunks_exact(row_bytes as usize)
        .map_init(
            || vec![0.0f32; row_len],
            |values, src| {
                dequantize_row(t, src, values)?;
                Ok(u64::from(!values.iter().all(|v| v.is_finite())))
            },
        )
        .try_reduce(|| 0, |a, b| Ok(a + b))
}

/// Takes the next encoded bytes, and how many bytes of the source they came from; may ask for the end.
pub type Sink<'a> = dyn FnMut(&[u8], u64) -> Result<ControlFlow<()>, GgufError> + 'a;

/// Where the tensors of a file are read from, piece by piece.
///
/// [`InMemory`] hands out slices of bytes that are there. [`FromFile`] reads into a buffer: of a file that
/// was mapped, all pages that are touched count as memory of the process.
pub trait Pieces {
    /// `length` bytes from byte `start` of the file on.
    ///
    /// # Errors
    /// What the system says; bytes past the end.
    fn piece(&mut self, start: u64, length: usize) -> io::Result<&[u8]>;
}

/// A file whose bytes are in memory.
#[derive(Clone, Copy, Debug)]
pub struct InMemory<'a>(pub &'a [u8]);

impl Pieces for InMemory<'_> {
    fn piece(&mut self, start: u64, length: usize) -> io::Result<&[u8]> {
        let start = usize::try_from(start).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(length)?));
        let piece = range.and_then(|range| self.0.get(range));
        piece.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// A file that is read.
#[derive(Debug)]
pub struct FromFile<R> {
    file: R,
    buffer: Vec<u8>,
}

impl<R: Read + Seek> FromFile<R> {
    /// Reads from `file`, wherever it stands.
    pub fn new(file: R) -> Self {
        Self {
            file,
            buffer: Vec::new(),
        }
    }
}

impl<R: Read + Seek> Pieces for FromFile<R> {
    fn piece(&mut self, start: u64, length: usize) -> io::Result<&[u8]> {
        self.buffer.resize(length, 0);
        self.file.seek(SeekFrom::Start(start))?;
        self.file.read_exact(&mut self.buffer)?;
        Ok(&self.buffer)
    }
}

/// Converts one tensor to type `to` and hands out its bytes in order, some megabytes at a time.
/// Importances are taken by expert: the index over all dimensions past the second. Returns how many
/// rows hold or gave a value that is not finite, or none if `sink` asked for the end.
///
/// # Errors
/// As [`GgufFile::tensor_bytes`] and [`convert_rows`], and whatever `pieces` and `sink` return.
pub fn convert_tensor<B: AsRef<[u8]>>(
    source: &GgufFile<B>,
    pieces: &mut dyn Pieces,
    tensor: &TensorInfo,
    to: GgmlType,
    importance: Option<&crate::ImatrixEntry>,
    sink: &mut Sink<'_>,
) -> Result<Option<u64>, QuantizeError> {
    // The header was checked against the size of the file, so that the tensor lies in it.
    let length = source.tensor_bytes(tensor)?.len() as u64;
    let start = source.data_start() + tensor.offset();
    let unread = |error| GgufError::Read {
        file: source.file().into(),
        source: error,
    };
    let wrong = |error| QuantizeError::Tensor {
        file: source.file().into(),
        name: tensor.name().into(),
        from: tensor.ggml_type(),
        to,
        source: error,
    };
    let row_len = tensor.row_len() as usize;
    if tensor.ggml_type() == to {
        let mut bad = 0;
        let row = tensor.row_bytes().max(1);
        let whole_rows = (CHUNK_BYTES / row).max(1) * row;
        for at in (0..length).step_by(whole_rows as usize) {
            let part = whole_rows.min(length - at) as usize;
            let part = pieces.piece(start + at, part).map_err(unread)?;
            if to.is_readable() {
                bad += rows_not_finite(to, part, row_len).map_err(wrong)?;
            }
            if sink(part, part.len() as u64)?.is_break() {
                return Ok(None);
            }
        }
        return Ok(Some(bad));
    }
    let to_row = to
        .bytes_for(tensor.row_len())
        .ok_or(BlockError::NotWholeBlocks {
            ggml_type: to,
            values: row_len,
            block: to.block_values(),
        })
        .map_err(wrong)?;
    let from_row = tensor.row_bytes();
    let expert_rows = tensor.dims().get(1).copied().unwrap_or(1);
    let rows_at_once = (CHUNK_BYTES / to_row).clamp(1, expert_rows);
    let mut out = vec![0u8; (rows_at_once * to_row) as usize];
    let mut bad = 0;
    let experts = length / (expert_rows * from_row);
    for e in 0..experts {
        let weights = importance.and_then(|entry| entry.expert(e as usize));
        for row in (0..expert_rows).step_by(rows_at_once as usize) {
            let rows = rows_at_once.min(expert_rows - row);
            let at = start + (e * expert_rows + row) * from_row;
            let part = (rows * from_row) as usize;
            let part = pieces.piece(at, part).map_err(unread)?;
            let out = &mut out[..(rows * to_row) as usize];
            bad +=
                convert_rows(tensor.ggml_type(), part, row_len, to, weights, out).map_err(wrong)?;
            if sink(out, part.len() as u64)?.is_break() {
                return Ok(None);
            }
        }
    }
    Ok(Some(bad))
}

/// Quantises a file: metadata as it is, but for `general.file_type`, which goes to the end; tensors in
/// their order, with the types that `policy` gives them. `progress` is called before each part and
/// may ask for the end.
///
/// Writing to a temporary file and renaming it is the caller's.
///
/// # Errors
/// See [`QuantizeError`].
pub fn quantize_file<B: AsRef<[u8]>, W: Write>(
    source: &GgufFile<B>,
    out: W,
    out_file: &str,
    policy: &Policy,
    imatrix: Option<&Imatrix>,
    progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<(W, QuantizeReport), QuantizeError> {
    let mut pieces = InMemory(source.bytes());
    quantize_pieces(
        source,
        &mut pieces,
        out,
        out_file,
        policy,
        imatrix,
        progress,
    )
}

/// As [`quantize_file`], with the tensors read from `pieces` of the same file. Memory: the header and
/// some tens of megabytes, whatever the size of the file, where that is [`FromFile`].
///
/// # Errors
/// See [`QuantizeError`].
pub fn quantize_pieces<B: AsRef<[u8]>, W: Write>(
    source: &GgufFile<B>,
    pieces: &mut dyn Pieces,
    out: W,
    out_file: &str,
    policy: &Policy,
    imatrix: Option<&Imatrix>,
    progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<(W, QuantizeReport), QuantizeError> {
    let mut metadata = source.metadata().clone();
    metadata.remove(FILE_TYPE_KEY);
    if let Some(id) = policy.bulk.file_type() {
        metadata.set(FILE_TYPE_KEY, Value::U32(id));
    }
    let tensors: Vec<NewTensor> = source
        .tensors()
        .iter()
        .map(|t| NewTensor {
            name: t.name().into(),
            dims: t.dims().to_vec(),
            ggml_type: policy.storage_type(t.name(), t.dims(), t.ggml_type()),
        })
        .collect();
    let mut report = QuantizeReport::default();
    if let Some(imatrix) = imatrix {
        let unknown = imatrix
            .entries
            .keys()
            .filter(|k| source.tensor(k).is_none());
        report.importance_unused.extend(unknown.cloned());
    }
    let total = source.tensors().iter().map(TensorInfo::byte_len).sum();
    let mut writer = GgufWriter::new(out, out_file, &metadata, &tensors)?;
    let mut done = 0;
    for (tensor, new) in source.tensors().iter().zip(&tensors) {
        let to = new.ggml_type;
        let from = tensor.ggml_type();
        let entry = imatrix.and_then(|m| m.entries.get(tensor.name()));
        let experts: u64 = tensor.dims().iter().skip(2).product();
        let entry = entry.filter(|e| {
            let fits = e.inputs() as u64 == tensor.row_len() && e.experts() as u64 == experts;
            if !fits {
                report.importance_unused.push(tensor.name().into());
            }
            fits
        });
        if from != to && from.is_quantized() {
            report.requantized.push(tensor.name().into());
        }
        let mut step = |done| {
            progress(Progress {
                tensor: tensor.name(),
                to,
                done,
                total,
            })
        };
        if step(done).is_break() {
            return Err(QuantizeError::Stopped);
        }
        let mut written = 0;
        let bad = convert_tensor(source, pieces, tensor, to, entry, &mut |bytes, read| {
            writer.write(tensor.name(), bytes)?;
            written += bytes.len() as u64;
            done += read;
            Ok(step(done))
        })?
        .ok_or(QuantizeError::Stopped)?;
        if bad > 0 {
            report.not_finite.push((tensor.name().into(), bad));
        }
        let of_type = report.types.entry(to).or_default();
        of_type.0 += 1;
        of_type.1 += written;
        report.bytes_before += tensor.byte_len();
        report.bytes_after += written;
    }
    Ok((writer.finish()?, report))
}
