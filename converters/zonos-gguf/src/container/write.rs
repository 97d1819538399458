//! Writing: the header at once, since all sizes are known from the types, then tensor by tensor.

use std::collections::HashSet;
use std::io::Write;

use super::value::put_string;
use super::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, GgufError, MAGIC, MAX_DIMS, MAX_KEY_BYTES, MAX_NAME_BYTES,
    Metadata, Value,
};
use crate::GgmlType;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTensor {
    /// Its name, 63 bytes at most.
    pub name: String,
    /// Dimensions, fastest first; `dims[0]` is a multiple of the block.
    pub dims: Vec<u64>,
    /// Its type.
    pub ggml_type: GgmlType,
}

impl NewTensor {
    fn bytes(&self) -> Option<u64> {
        let elements = self
            .dims
            .iter()
            .try_fold(1u64, |n, &d| n.checked_mul(d))
            .filter(|&n| n > 0 && n < 1 << 63)?;
        let row = self.dims.first()?;
        if !row.is_multiple_of(self.ggml_type.block_values() as u64) {
            return None;
        }
        self.ggml_type.bytes_for(elements)
    }
}

/// Writes a file of version 3: tensors in the order announced, each padded with zeros to the
/// alignment, the last one too. ggml's and gguf-py's writers give the same bytes.
///
/// Nothing is kept but the header; writing to a temporary file and renaming it is the caller's.
#[derive(Debug)]
pub struct GgufWriter<W> {
    out: W,
    file: String,
    alignment: u64,
    tensors: Vec<(String, u64)>,
    /// The tensor being written, and its bytes so far.
    current: usize,
    written: u64,
}

impl<W: Write> GgufWriter<W> {
    /// Writes the header. `file` is what errors call the file.
    ///
    /// # Errors
    /// Before anything is written: a key or name that a reader would refuse, a tensor whose size
    /// overflows or whose rows are not whole blocks, an alignment that is no power of two as u32.
    pub fn new(
        mut out: W,
        file: impl Into<String>,
        metadata: &Metadata,
        tensors: &[NewTensor],
    ) -> Result<Self, GgufError> {
        let file = file.into();
        let alignment = match metadata.get(ALIGNMENT_KEY) {
            None => DEFAULT_ALIGNMENT.into(),
            Some(Value::U32(v)) if v.is_power_of_two() => u64::from(*v),
            Some(other) => {
                return Err(GgufError::metadata(
                    &file,
                    format!("'{ALIGNMENT_KEY}'"),
                    format!("alignment must be a power of two as u32, found {other}"),
                ));
            }
        };
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(3u32.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata.iter() {
            if key.is_empty() || key.len() > MAX_KEY_BYTES {
                return Err(GgufError::metadata(
                    &file,
                    format!("'{key}'"),
                    format!(
                        "a key of {} bytes; 1 to {MAX_KEY_BYTES} are allowed",
                        key.len()
                    ),
                ));
            }
            put_string(&mut header, key);
            header.extend(value.value_type().id().to_le_bytes());
            value.put(&mut header);
        }
        let (mut offset, mut names) = (0u64, HashSet::new());
        let mut sizes = Vec::with_capacity(tensors.len());
        for t in tensors {
            let wrong = |problem: &str| GgufError::tensor(&file, format!("'{}'", t.name), problem);
            if t.name.len() > MAX_NAME_BYTES || t.name.contains('\0') {
                return Err(wrong("a name has at most 63 bytes, none of them NUL"));
            }
            if !names.insert(t.name.as_str()) {
                return Err(wrong("appears twice"));
            }
            if t.dims.is_empty() || t.dims.len() > MAX_DIMS {
                return Err(wrong("1 to 4 dimensions are allowed"));
            }
            let Some(bytes) = t.bytes() else {
                return Err(wrong(&format!(
                    "dimensions {:?} do not make whole blocks of {}, or overflow",
                    t.dims, t.ggml_type
                )));
            };
            put_string(&mut header, &t.name);
            header.extend((t.dims.len() as u32).to_le_bytes());
            header.extend(t.dims.iter().flat_map(|d| d.to_le_bytes()));
            header.extend(t.ggml_type.id().to_le_bytes());
            header.extend(offset.to_le_bytes());
            sizes.push((t.name.clone(), bytes));
            offset = bytes
                .checked_next_multiple_of(alignment)
                .and_then(|b| offset.checked_add(b))
                .ok_or_else(|| wrong("the file would pass 2^64 bytes"))?;
        }
        // ggml pads the header of a file without tensors as well.
        let padded = (header.len() as u64).next_multiple_of(alignment);
        out.write_all(&header)
            .and_then(|()| put_zeros(&mut out, padded - header.len() as u64))
            .map_err(|source| GgufError::Io {
                file: file.clone(),
                source,
            })?;
        Ok(Self {
            out,
            file,
            alignment,
            tensors: sizes,
            current: 0,
            written: 0,
        })
    }

    /// The tensor whose bytes come next; none when all are written.
    pub fn next_tensor(&self) -> Option<&str> {
        self.tensors
            .get(self.current)
            .map(|(name, _)| name.as_str())
    }

    /// Writes all of the next tensor, or a further part of it.
    ///
    /// # Errors
    /// If `name` is not the tensor whose turn it is, or would get more bytes than it has.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), GgufError> {
        let wrong = |problem: String| GgufError::tensor(&self.file, format!("'{name}'"), problem);
        let Some((due, size)) = self.tensors.get(self.current) else {
            return Err(wrong("all tensors announced are written".into()));
        };
        if due != name {
            return Err(wrong(format!("it is the turn of '{due}'")));
        }
        if bytes.len() as u64 > size - self.written {
            return Err(wrong(format!(
                "it has {size} bytes, {} would be written",
                self.written + bytes.len() as u64
            )));
        }
        let full = self.written + bytes.len() as u64 == *size;
        let padding = size.next_multiple_of(self.alignment) - size;
        let mut done = self.out.write_all(bytes);
        if full {
            done = done.and_then(|()| put_zeros(&mut self.out, padding));
        }
        done.map_err(|source| GgufError::Io {
            file: self.file.clone(),
            source,
        })?;
        if full {
            self.current += 1;
            self.written = 0;
        } else {
            self.written += bytes.len() as u64;
        }
        Ok(())
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// If a tensor is missing or incomplete.
    pub fn finish(mut self) -> Result<W, GgufError> {
        if let Some((name, size)) = self.tensors.get(self.current) {
            return Err(GgufError::tensor(
                &self.file,
                format!("'{name}'"),
                format!("{} of its {size} bytes were written", self.written),
            ));
        }
        match self.out.flush() {
            Ok(()) => Ok(self.out),
            Err(source) => Err(GgufError::Io {
                file: self.file,
                source,
            }),
        }
    }
}

/// In parts: an alignment may be anything up to 2^31.
fn put_zeros(out: &mut impl Write, mut n: u64) -> std::io::Result<()> {
    let zeros = [0u8; 4096];
    while n > 0 {
        let part = n.min(zeros.len() as u64);
        out.write_all(&zeros[..part as usize])?;
        n -= part;
    }
    Ok(())
}
