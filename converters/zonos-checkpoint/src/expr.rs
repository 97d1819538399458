//! How a model's tensor is put together from tensors of a file: shapes first, values when asked.

use std::ops::Range;

use burn::tensor::{Bytes, DType, TensorData};

use crate::tensor::{Entry, aligned, row_major};
use crate::{Checkpoint, CheckpointError};
use zonos_gguf::GgmlType;

/// A tensor computed from file tensors; always of one dtype.
#[derive(Debug, Clone)]
pub(crate) enum Expr {
    /// Tensor number `i` of the checkpoint.
    File(usize),
    /// A new leading axis.
    Stack(Vec<Expr>),
    Concat(Vec<Expr>, usize),
    /// Slices of the two along the axis, taken in turn, the first one's first.
    Interleave(Box<[Expr; 2]>, usize),
    /// The first half along the axis taken in turn with the second half.
    InterleaveHalves(Box<Expr>, usize),
    Slice {
        of: Box<Expr>,
        axis: usize,
        start: usize,
        len: usize,
    },
    Transpose(Box<Expr>, usize, usize),
}

/// What an expression is computed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    /// Values; those of quantised blocks are decoded.
    Values,
    /// Rows of quantised blocks as bytes: the last axis counts bytes.
    Blocks,
}

impl View {
    fn signature(self, entry: &Entry) -> Result<Signature, String> {
        match self {
            Self::Values => Ok(Signature {
                shape: entry.info.shape.clone(),
                dtype: entry.info.dtype,
            }),
            Self::Blocks => Ok(Signature {
                shape: entry.block_shape().ok_or("it has no blocks")?,
                dtype: DType::U8,
            }),
        }
    }

    fn data(self, entry: &Entry) -> Result<TensorData, CheckpointError> {
        match self {
            Self::Values => entry.data(),
            Self::Blocks => entry.block_rows(),
        }
    }
}

/// Shape and dtype of an expression, known without reading values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Signature {
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
}

impl Expr {
    /// Checks that the parts fit together; the error is the reason.
    pub(crate) fn signature(&self, entries: &[Entry]) -> Result<Signature, String> {
        self.signature_in(entries, View::Values)
    }

    fn signature_in(&self, entries: &[Entry], view: View) -> Result<Signature, String> {
        match self {
            Self::File(i) => view.signature(&entries[*i]),
            Self::Stack(parts) => {
                let mut first = same(parts, entries, view, None)?;
                first.shape.insert(0, parts.len());
                Ok(first)
            }
            Self::Concat(parts, axis) => {
                let mut first = same(parts, entries, view, Some(*axis))?;
                let mut total = 0usize;
                for part in parts {
                    let length = part.signature_in(entries, view)?.shape[*axis];
                    total = total.checked_add(length).ok_or("the sizes overflow")?;
                }
                first.shape[*axis] = total;
                Ok(first)
            }
            Self::Interleave(parts, axis) => {
                let mut first = same(&parts[..], entries, view, None)?;
                let length = first.shape.get_mut(*axis).ok_or("it has too few axes")?;
                *length = length.checked_mul(2).ok_or("the sizes overflow")?;
                Ok(first)
            }
            Self::InterleaveHalves(of, axis) => {
                let inner = of.signature_in(entries, view)?;
                match inner.shape.get(*axis) {
                    Some(n) if n.is_multiple_of(2) => Ok(inner),
                    _ => Err(format!(
                        "axis {axis} of shape {:?} has no two halves",
                        inner.shape
                    )),
                }
            }
            Self::Slice {
                of,
                axis,
                start,
                len,
            } => {
                let mut inner = of.signature_in(entries, view)?;
                match inner.shape.get_mut(*axis) {
                    Some(n) if start.checked_add(*len).is_some_and(|end| end <= *n) => *n = *len,
                    _ => {
                        return Err(format!(
                            "axis {axis} of shape {:?} has no {len} entries from {start} on",
                            inner.shape
                        ));
                    }
                }
                Ok(inner)
            }
            Self::Transpose(of, a, b) => {
                let mut inner = of.signature_in(entries, view)?;
                if *a >= inner.shape.len() || *b >= inner.shape.len() {
                    return Err(format!("shape {:?} has no axes {a} and {b}", inner.shape));
                }
                inner.shape.swap(*a, *b);
                Ok(inner)
            }
        }
    }

    pub(crate) fn rank(&self, entries: &[Entry]) -> usize {
        self.signature(entries).map_or(0, |s| s.shape.len())
    }

    /// Entries `rows` of the first axis, read without reading the others where the expression
    /// allows it. The range lies within the axis.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Self {
        let inner = |e: &Self| e.rows(rows.clone());
        match self {
            Self::Stack(parts) if !rows.is_empty() => Self::Stack(parts[rows].to_vec()),
            Self::Concat(parts, axis) if *axis > 0 => {
                Self::Concat(parts.iter().map(inner).collect(), *axis)
            }
            Self::Interleave(parts, axis) if *axis > 0 => {
                Self::Interleave(Box::new([inner(&parts[0]), inner(&parts[1])]), *axis)
            }
            Self::InterleaveHalves(of, axis) if *axis > 0 => {
                Self::InterleaveHalves(Box::new(inner(of)), *axis)
            }
            Self::Transpose(of, a, b) if *a > 0 && *b > 0 => {
                Self::Transpose(Box::new(inner(of)), *a, *b)
            }
            Self::Slice {
                of,
                axis,
                start,
                len,
            } if *axis > 0 => Self::Slice {
                of: Box::new(inner(of)),
                axis: *axis,
                start: *start,
                len: *len,
            },
            whole => Self::Slice {
                of: Box::new(whole.clone()),
                axis: 0,
                start: rows.start,
                len: rows.len(),
            },
        }
    }

    /// Numbers of the file tensors it is made of.
    pub(crate) fn sources(&self, out: &mut Vec<usize>) {
        match self {
            Self::File(i) => out.push(*i),
            Self::Stack(parts) | Self::Concat(parts, _) => {
                parts.iter().for_each(|p| p.sources(out));
            }
            Self::Interleave(parts, _) => parts.iter().for_each(|p| p.sources(out)),
            Self::InterleaveHalves(of, _) | Self::Transpose(of, ..) | Self::Slice { of, .. } => {
                of.sources(out);
            }
        }
    }

    /// The block format of all its sources, when they share one and no row is taken apart.
    pub(crate) fn blocks(&self, entries: &[Entry]) -> Option<GgmlType> {
        let mut sources = Vec::new();
        self.sources(&mut sources);
        let mut types = sources.into_iter().map(|i| entries[i].info.blocks);
        let first = types.next()??;
        (types.all(|t| t == Some(first)) && self.keeps_rows(entries)).then_some(first)
    }

    /// Whether rows, the last axis of each source, stay what they are.
    fn keeps_rows(&self, entries: &[Entry]) -> bool {
        let last = |axis: usize, of: &Self| axis + 1 >= of.rank(entries);
        match self {
            Self::File(i) => !entries[*i].info.shape.is_empty(),
            Self::Stack(parts) => parts.iter().all(|p| p.keeps_rows(entries)),
            Self::Concat(parts, axis) => parts
                .iter()
                .all(|p| p.keeps_rows(entries) && !last(*axis, p)),
            Self::Interleave(parts, axis) => parts
                .iter()
                .all(|p| p.keeps_rows(entries) && !last(*axis, p)),
            Self::InterleaveHalves(of, axis) | Self::Slice { of, axis, .. } => {
                of.keeps_rows(entries) && !last(*axis, of)
            }
            Self::Transpose(of, a, b) => of.keeps_rows(entries) && !last(*a, of) && !last(*b, of),
        }
    }

    /// Rows of blocks, U8 `[.., bytes of a row]`; for expressions with [`Expr::blocks`]. A plain file
    /// tensor stays a view of the mapping.
    pub(crate) fn eval_blocks(
        &self,
        checkpoint: &Checkpoint,
    ) -> Result<TensorData, CheckpointError> {
        self.eval_in(checkpoint, View::Blocks)
    }

    /// The values in the file's dtype; a plain file tensor stays a view of the mapping.
    pub(crate) fn eval(&self, checkpoint: &Checkpoint) -> Result<TensorData, CheckpointError> {
        self.eval_in(checkpoint, View::Values)
    }

    fn eval_in(&self, checkpoint: &Checkpoint, view: View) -> Result<TensorData, CheckpointError> {
        let entries = checkpoint.entries();
        let signature = |e: &Self| {
            e.signature_in(entries, view)
                .map_err(|reason| CheckpointError::malformed(checkpoint.path(), reason))
        };
        let out = signature(self)?;
        let width = out.dtype.size();
        let done = match self {
            Self::File(i) => return view.data(&entries[*i]),
            Self::Stack(parts) => {
                let bytes = fill(parts, 1, &out, checkpoint, view)?;
                TensorData::try_from_bytes(bytes, out.shape, out.dtype)
            }
            Self::Concat(parts, axis) => {
                let outer = out.shape[..*axis].iter().product::<usize>();
                let bytes = fill(parts, outer, &out, checkpoint, view)?;
                TensorData::try_from_bytes(bytes, out.shape, out.dtype)
            }
            Self::Interleave(parts, axis) => {
                let [even, odd] = &**parts;
                let even = even.eval_in(checkpoint, view)?.convert_dtype(out.dtype);
                let odd = odd.eval_in(checkpoint, view)?.convert_dtype(out.dtype);
                let run = out.shape[axis + 1..].iter().product::<usize>() * width;
                let bytes = aligned(even.bytes().len() * 2, width, |target| {
                    if run > 0 {
                        let pairs = even
                            .bytes()
                            .chunks_exact(run)
                            .zip(odd.bytes().chunks_exact(run));
                        for (to, (a, b)) in target.chunks_exact_mut(run * 2).zip(pairs) {
                            to[..run].copy_from_slice(a);
                            to[run..].copy_from_slice(b);
                        }
                    }
                });
                TensorData::try_from_bytes(bytes, out.shape, out.dtype)
            }
            Self::InterleaveHalves(of, axis) => {
                let data = of.eval_in(checkpoint, view)?;
                let run = out.shape[axis + 1..].iter().product::<usize>() * width;
                let half = out.shape[*axis] / 2 * run;
                let source: &[u8] = data.bytes();
                let bytes = aligned(source.len(), width, |target| {
                    if half > 0 {
                        let blocks = source.chunks_exact(half * 2);
                        for (to, from) in target.chunks_exact_mut(half * 2).zip(blocks) {
                            let pairs = from[..half]
                                .chunks_exact(run)
                                .zip(from[half..].chunks_exact(run));
                            for (to, (a, b)) in to.chunks_exact_mut(run * 2).zip(pairs) {
                                to[..run].copy_from_slice(a);
                                to[run..].copy_from_slice(b);
                            }
                        }
                    }
                });
                TensorData::try_from_bytes(bytes, out.shape, out.dtype)
            }
            Self::Slice {
                of,
                axis,
                start,
                len,
            } => {
                let whole = signature(of)?;
                return slice(
                    of.eval_in(checkpoint, view)?,
                    &whole.shape,
                    *axis,
                    *start,
                    *len,
                )
                .map_err(|reason| CheckpointError::malformed(checkpoint.path(), reason));
            }
            Self::Transpose(of, a, b) => {
                let data = of.eval_in(checkpoint, view)?;
                let inner = signature(of)?;
                let mut strides = row_major(&inner.shape);
                strides.swap(*a, *b);
                let source: &[u8] = data.bytes();
                let bytes = aligned(source.len(), width, |target| {
                    let mut index = vec![0usize; out.shape.len()];
                    for element in target.chunks_exact_mut(width) {
                        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
                        element.copy_from_slice(&source[at * width..(at + 1) * width]);
                        for axis in (0..index.len()).rev() {
                            index[axis] += 1;
                            if index[axis] < out.shape[axis] {
                                break;
                            }
                            index[axis] = 0;
                        }
                    }
                });
                TensorData::try_from_bytes(bytes, out.shape, out.dtype)
            }
        };
        done.map_err(|e| CheckpointError::malformed(checkpoint.path(), e.to_string()))
    }
}

/// The parts' bytes side by side: `outer` times, each time the next `1/outer` of every part.
fn fill(
    parts: &[Expr],
    outer: usize,
    out: &Signature,
    checkpoint: &Checkpoint,
    view: View,
) -> Result<Bytes, CheckpointError> {
    let width = out.dtype.size();
    let total = out.shape.iter().product::<usize>() * width;
    let stride = total / outer.max(1);
    let mut failed = None;
    let bytes = aligned(total, width, |target| {
        let mut at = 0;
        for part in parts {
            // One part at a time: each is dropped before the next is read.
            let data = match part.eval_in(checkpoint, view) {
                Ok(data) => data.convert_dtype(out.dtype),
                Err(e) => {
                    failed = Some(e);
                    return;
                }
            };
            let source: &[u8] = data.bytes();
            let run = source.len() / outer.max(1);
            for o in 0..outer {
                target[o * stride + at..][..run].copy_from_slice(&source[o * run..][..run]);
            }
            at += run;
        }
    });
    match failed {
        Some(e) => Err(e),
        None => Ok(bytes),
    }
}

/// `len` steps of `axis` from `start`; along the outermost axis this is a view, not a copy.
pub(crate) fn slice(
    data: TensorData,
    shape: &[usize],
    axis: usize,
    start: usize,
    len: usize,
) -> Result<TensorData, String> {
    let dtype = data.dtype();
    let width = dtype.size();
    let inner = shape[axis + 1..].iter().product::<usize>() * width;
    let outer = shape[..axis].iter().product::<usize>();
    let mut new_shape = shape.to_vec();
    new_shape[axis] = len;
    let (from, run) = (start * inner, len * inner);
    let bytes = match data.bytes().view(from, from + run) {
        Ok(view) if outer == 1 => view,
        _ => {
            let source: &[u8] = data.bytes();
            aligned(outer * run, width, |target| {
                for o in 0..outer {
                    let at = o * shape[axis] * inner + from;
                    target[o * run..][..run].copy_from_slice(&source[at..at + run]);
                }
            })
        }
    };
    TensorData::try_from_bytes(bytes, new_shape, dtype).map_err(|e| e.to_string())
}

/// The common signature of `parts`; shapes may differ along `free`. Values of different float types become F32
/// together: files may keep queries in one type and values in another.
fn same(
    parts: &[Expr],
    entries: &[Entry],
    view: View,
    free: Option<usize>,
) -> Result<Signature, String> {
    let mut first = parts
        .first()
        .ok_or("nothing to put together")?
        .signature_in(entries, view)?;
    if let Some(axis) = free
        && axis >= first.shape.len()
    {
        return Err(format!("shape {:?} has no axis {axis}", first.shape));
    }
    for part in &parts[1..] {
        let other = part.signature_in(entries, view)?;
        let agree = other.shape.len() == first.shape.len()
            && (0..first.shape.len()).all(|i| Some(i) == free || other.shape[i] == first.shape[i]);
        let floats = first.dtype.is_float() && other.dtype.is_float();
        if agree && view == View::Values && floats && other.dtype != first.dtype {
            first.dtype = DType::F32;
        } else if !agree || other.dtype != first.dtype {
            return Err(format!(
                "parts differ: {:?} of {:?} and {:?} of {:?}",
                first.shape, first.dtype, other.shape, other.dtype
            ));
        }
    }
    Ok(first)
}
