//! Reading: one pass over the header, in file order, each size compared with the bytes that are left
//! before anything is taken.

use std::collections::HashMap;
use std::fmt;

use super::{
    ALIGNMENT_KEY, Array, DEFAULT_ALIGNMENT, FromValue, GgufError, LEAST_ENTRY, LEAST_TENSOR,
    MAGIC, MAX_DIMS, MAX_KEY_BYTES, MAX_NAME_BYTES, Metadata, Value, ValueType,
};
use crate::GgmlType;
use crate::blocks::dequantize_row;

/// The version of a file that can be read. Both have the same layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 2.
    V2,
    /// 3.
    V3,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V2 => "2",
            Self::V3 => "3",
        })
    }
}

/// One tensor of a file: what and where. Its bytes are known to lie inside the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    dims: [u64; MAX_DIMS],
    dim_count: usize,
    ggml_type: GgmlType,
    offset: u64,
    bytes: u64,
}

impl TensorInfo {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Dimensions as the file has them, fastest first: `dims()[0]` is the length of a row.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..self.dim_count]
    }

    /// Dimensions slowest first, as row-major libraries write them.
    pub fn shape(&self) -> Vec<usize> {
        self.dims().iter().rev().map(|&d| d as usize).collect()
    }

    /// Its type.
    pub fn ggml_type(&self) -> GgmlType {
        self.ggml_type
    }

    /// Number of values.
    pub fn elements(&self) -> u64 {
        self.dims().iter().product()
    }

    /// Values of a row.
    pub fn row_len(&self) -> u64 {
        self.dims[0]
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.bytes / self.rows()
    }

    /// Number of rows, never 0.
    pub fn rows(&self) -> u64 {
        self.dims()[1..].iter().product()
    }

    /// Bytes of all rows.
    pub fn byte_len(&self) -> u64 {
        self.bytes
    }

    /// Where it starts, from the start of the data section.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// A file that lies in memory, most often mapped. Only the header is read; tensors are handed out
/// where they lie.
#[derive(Debug)]
pub struct GgufFile<B> {
    file: String,
    bytes: B,
    version: Version,
    alignment: u32,
    data_start: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

impl<B: AsRef<[u8]>> GgufFile<B> {
    /// Reads the header. `file` is what errors call the file.
    ///
    /// # Errors
    /// A file that contradicts itself anywhere is refused, with the key or tensor named: see the
    /// variants of [`GgufError`]. Nothing larger than the file is allocated.
    pub fn read(file: impl Into<String>, bytes: B) -> Result<Self, GgufError> {
        let file = file.into();
        let header = Header::read(&file, bytes.as_ref())?;
        let index = header
            .tensors
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name.clone(), i))
            .collect();
        Ok(Self {
            file,
            version: header.version,
            alignment: header.alignment,
            data_start: header.data_start,
            metadata: header.metadata,
            tensors: header.tensors,
            index,
            bytes,
        })
    }

    /// What errors call the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The alignment of its tensors.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Where the data section starts; of a file without tensors this may lie past the end.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Bytes behind the last tensor and its padding, which belong to nothing. A file that was cut and
    /// filled up, or had something appended, has such; every tensor is there all the same.
    pub fn trailing_bytes(&self) -> u64 {
        let ends = self.tensors.iter().map(|t| t.offset + t.bytes);
        // Sums within the file, as was checked when it was read, but for the padding.
        let end = ends
            .max()
            .unwrap_or(0)
            .saturating_add(self.data_start)
            .checked_next_multiple_of(u64::from(self.alignment))
            .unwrap_or(u64::MAX);
        (self.bytes.as_ref().len() as u64).saturating_sub(end)
    }

    /// All the bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// All metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The value of `key` as a `T`; none if the key is not there.
    ///
    /// # Errors
    /// If the value is of another type or does not fit.
    pub fn optional<T: FromValue>(&self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.metadata.get(key) else {
            return Ok(None);
        };
        let read = T::from_value(value).ok_or_else(|| {
            let found = match value {
                Value::Array(_) => value.described(),
                other => format!("{} {other}", other.value_type()),
            };
            GgufError::metadata(
                &self.file,
                format!("'{key}'"),
                format!("expected {}, found {found}", T::EXPECTED),
            )
        });
        read.map(Some)
    }

    /// The value of `key` as a `T`.
    ///
    /// # Errors
    /// If there is none, it is of another type or does not fit.
    pub fn required<T: FromValue>(&self, key: &str) -> Result<T, GgufError> {
        self.optional(key)?.ok_or_else(|| {
            GgufError::metadata(
                &self.file,
                format!("'{key}'"),
                format!("missing; expected {}", T::EXPECTED),
            )
        })
    }

    /// Tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// The bytes of a tensor of this file, where they lie.
    ///
    /// # Errors
    /// If `tensor` is not of this file.
    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> Result<&[u8], GgufError> {
        let range = || {
            let start = self.data_start.checked_add(tensor.offset)?;
            let end = start.checked_add(tensor.bytes)?;
            self.bytes
                .as_ref()
                .get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
        };
        range().ok_or_else(|| GgufError::NoSuchTensor {
            file: self.file.clone(),
            name: tensor.name.clone(),
        })
    }

    /// All values of a tensor as f32, row after row.
    ///
    /// # Errors
    /// If there is no such tensor, or its type is listed only.
    pub fn dequantize(&self, name: &str) -> Result<Vec<f32>, GgufError> {
        let tensor = self.tensor(name).ok_or_else(|| GgufError::NoSuchTensor {
            file: self.file.clone(),
            name: name.into(),
        })?;
        let bytes = self.tensor_bytes(tensor)?;
        let block = |source| GgufError::Block {
            file: self.file.clone(),
            name: tensor.name.clone(),
            ggml_type: tensor.ggml_type,
            source,
        };
        if !tensor.ggml_type.is_readable() {
            return Err(block(crate::BlockError::Unsupported(tensor.ggml_type)));
        }
        let mut out = vec![0.0; tensor.elements() as usize];
        dequantize_row(tensor.ggml_type, bytes, &mut out).map_err(block)?;
        Ok(out)
    }
}

struct Header {
    version: Version,
    alignment: u32,
    data_start: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
}

impl Header {
    fn read(file: &str, bytes: &[u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor { file, bytes, at: 0 };
        let magic = cursor.take(4, || "the magic".into())?;
        if magic != MAGIC {
            return Err(GgufError::NotGguf {
                file: file.into(),
                found: first_bytes(bytes),
            });
        }
        let version = read_version(&mut cursor)?;
        let tensor_count = cursor.u64(|| "the tensor count".into())?;
        let entry_count = cursor.u64(|| "the metadata count".into())?;
        cursor.check_count("metadata entries", entry_count, LEAST_ENTRY)?;
        cursor.check_count("tensors", tensor_count, LEAST_TENSOR)?;
        let mut metadata = Metadata::new();
        for i in 0..entry_count {
            read_entry(&mut cursor, i, &mut metadata)?;
        }
        let alignment = alignment(file, &metadata)?;
        let mut tensors = Vec::new();
        let mut names = std::collections::HashSet::new();
        for i in 0..tensor_count {
            let tensor = read_tensor(&mut cursor, i)?;
            if !names.insert(tensor.name.clone()) {
                return Err(GgufError::tensor(
                    file,
                    quoted(&tensor.name),
                    "appears twice",
                ));
            }
            tensors.push(tensor);
        }
        let data_start = (cursor.at as u64).next_multiple_of(u64::from(alignment));
        if !tensors.is_empty() && data_start > bytes.len() as u64 {
            return Err(GgufError::Truncated {
                file: file.into(),
                what: format!("the padding before the data section (alignment {alignment})"),
                needed: data_start - cursor.at as u64,
                at: cursor.at as u64,
                left: cursor.left() as u64,
            });
        }
        let room = (bytes.len() as u64).saturating_sub(data_start);
        check_places(file, &tensors, alignment, room)?;
        Ok(Self {
            version,
            alignment,
            data_start,
            metadata,
            tensors,
        })
    }
}

fn quoted(name: &str) -> String {
    format!("'{name}'")
}

/// What a file that is no GGUF starts with.
fn first_bytes(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(4)];
    let looks = if bytes.get(8) == Some(&b'{') {
        " (it looks like safetensors)"
    } else if start.starts_with(b"PK") {
        " (it looks like a zip archive, as .pth files are)"
    } else if start.starts_with(b"vers") {
        " (it looks like a Git LFS pointer: run `git lfs pull`)"
    } else if start.starts_with(b"<") {
        " (it looks like a web page: the download failed)"
    } else {
        ""
    };
    format!("'{}'{looks}", start.escape_ascii())
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<Version, GgufError> {
    let found = cursor.u32(|| "the version".into())?;
    match found {
        2 => Ok(Version::V2),
        3 => Ok(Version::V3),
        field if field != 0 && field & 0xffff == 0 => Err(GgufError::BigEndian {
            file: cursor.file.into(),
            field,
        }),
        _ => Err(GgufError::Version {
            file: cursor.file.into(),
            found,
            remedy: if found < 2 {
                "convert the model again with a current tool"
            } else {
                "the file is newer than this reader"
            },
        }),
    }
}

fn read_entry(cursor: &mut Cursor<'_>, i: u64, metadata: &mut Metadata) -> Result<(), GgufError> {
    let wrong = |key: String, problem: String| GgufError::metadata(cursor.file, key, problem);
    let number = format!("key {i}");
    let length = cursor.u64(|| format!("the length of metadata key {i}"))?;
    if length > MAX_KEY_BYTES as u64 {
        let problem = format!("it has {length} bytes, at most {MAX_KEY_BYTES} are allowed");
        return Err(wrong(number, problem));
    }
    if length == 0 {
        return Err(wrong(number, "it is empty".into()));
    }
    let key = cursor.take(length, || format!("metadata key {i}"))?;
    let Ok(key) = std::str::from_utf8(key) else {
        return Err(GgufError::metadata(cursor.file, number, "it is not UTF-8"));
    };
    let id = cursor.u32(|| format!("the value type of '{key}'"))?;
    let Some(value_type) = ValueType::from_id(id) else {
        return Err(GgufError::metadata(
            cursor.file,
            quoted(key),
            format!("unknown value type {id}; types are 0 to 12"),
        ));
    };
    let value = match value_type {
        ValueType::String => Value::String(cursor.string(key)?.into()),
        ValueType::Array => Value::Array(read_array(cursor, key)?),
        scalar => {
            let bytes = cursor.take(scalar.least_bytes() as u64, || value_of(key))?;
            Value::scalar(scalar, bytes)
                .ok_or_else(|| GgufError::metadata(cursor.file, quoted(key), "unreadable value"))?
        }
    };
    if !metadata.push(key.into(), value) {
        return Err(GgufError::metadata(
            cursor.file,
            quoted(key),
            "the key appears twice",
        ));
    }
    Ok(())
}

fn value_of(key: &str) -> String {
    format!("the value of '{key}'")
}

fn read_array(cursor: &mut Cursor<'_>, key: &str) -> Result<Array, GgufError> {
    let wrong = |problem: String| GgufError::metadata(cursor.file, quoted(key), problem);
    let id = cursor.u32(|| format!("the element type of '{key}'"))?;
    let element = match ValueType::from_id(id) {
        Some(ValueType::Array) => {
            return Err(wrong("arrays of arrays are not supported".into()));
        }
        Some(element) => element,
        None => {
            return Err(wrong(format!(
                "unknown element type {id}; types are 0 to 12"
            )));
        }
    };
    let count = cursor.u64(|| format!("the length of '{key}'"))?;
    let (left, least) = (cursor.left() as u64, element.least_bytes() as u64);
    if count > left / least {
        return Err(GgufError::metadata(
            cursor.file,
            quoted(key),
            format!("{count} elements of {element} announced, but only {left} bytes follow"),
        ));
    }
    let start = cursor.at;
    if element == ValueType::String {
        for _ in 0..count {
            cursor.string(key)?;
        }
    } else {
        cursor.take(count * least, || value_of(key))?;
    }
    // `count` is below the length of the file.
    let raw = cursor.bytes[start..cursor.at].to_vec();
    Ok(Array::from_raw(element, count as usize, raw))
}

fn alignment(file: &str, metadata: &Metadata) -> Result<u32, GgufError> {
    let found = match metadata.get(ALIGNMENT_KEY) {
        None => return Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(v)) if v.is_power_of_two() => return Ok(*v),
        Some(Value::U32(v)) => v.to_string(),
        Some(other) => other.described(),
    };
    Err(GgufError::metadata(
        file,
        quoted(ALIGNMENT_KEY),
        format!("alignment must be a power of two as u32, found {found}"),
    ))
}

fn read_tensor(cursor: &mut Cursor<'_>, i: u64) -> Result<TensorInfo, GgufError> {
    let file = cursor.file;
    let number = || i.to_string();
    let length = cursor.u64(|| format!("the length of the name of tensor {i}"))?;
    if length > MAX_NAME_BYTES as u64 {
        let problem = format!("its name has {length} bytes, at most {MAX_NAME_BYTES} are allowed");
        return Err(GgufError::tensor(file, number(), problem));
    }
    let name = cursor.take(length, || format!("the name of tensor {i}"))?;
    let Ok(name) = std::str::from_utf8(name) else {
        return Err(GgufError::tensor(file, number(), "its name is not UTF-8"));
    };
    if name.contains('\0') {
        return Err(GgufError::tensor(
            file,
            number(),
            format!("its name '{name}' holds a NUL byte"),
        ));
    }
    let wrong = |problem: String| GgufError::tensor(file, quoted(name), problem);

    let count = cursor.u32(|| format!("the dimension count of '{name}'"))?;
    if count == 0 || count as usize > MAX_DIMS {
        return Err(wrong(format!(
            "{count} dimensions, 1 to {MAX_DIMS} are allowed"
        )));
    }
    let mut dims = [1u64; MAX_DIMS];
    let mut elements = Some(1u64);
    for d in &mut dims[..count as usize] {
        *d = cursor.u64(|| format!("the dimensions of '{name}'"))?;
        elements = elements.and_then(|n| n.checked_mul(*d));
    }
    let shown = &dims[..count as usize];
    if shown.contains(&0) {
        return Err(wrong(format!("a dimension of 0: {shown:?}")));
    }
    let id = cursor.u32(|| format!("the type of '{name}'"))?;
    let Some(ggml_type) = GgmlType::from_id(id) else {
        return Err(wrong(match GgmlType::removed(id) {
            Some(old) => format!("type {id} ({old}) was removed from the format"),
            None => format!("unknown type {id}"),
        }));
    };
    let Some(elements) = elements.filter(|&n| n < 1 << 63) else {
        return Err(wrong(format!(
            "the number of elements overflows: dimensions {shown:?}"
        )));
    };
    let block = ggml_type.block_values() as u64;
    if !dims[0].is_multiple_of(block) {
        return Err(wrong(format!(
            "row length {} is not a multiple of {block}, the block size of {ggml_type}",
            dims[0]
        )));
    }
    let Some(bytes) = ggml_type.bytes_for(elements) else {
        return Err(wrong(format!(
            "its size in bytes overflows: dimensions {shown:?}"
        )));
    };
    let offset = cursor.u64(|| format!("the offset of '{name}'"))?;
    Ok(TensorInfo {
        name: name.into(),
        dims,
        dim_count: count as usize,
        ggml_type,
        offset,
        bytes,
    })
}

/// Each tensor aligned, inside the data section of `room` bytes, and on its own.
fn check_places(
    file: &str,
    tensors: &[TensorInfo],
    alignment: u32,
    room: u64,
) -> Result<(), GgufError> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|t| t.offset);
    let mut before: Option<&TensorInfo> = None;
    for t in by_offset {
        let wrong = |problem: String| GgufError::tensor(file, quoted(&t.name), problem);
        let (start, bytes) = (t.offset, t.bytes);
        if !start.is_multiple_of(u64::from(alignment)) {
            return Err(wrong(format!(
                "offset {start} is not a multiple of the alignment {alignment}"
            )));
        }
        if start.checked_add(bytes).is_none_or(|end| end > room) {
            return Err(wrong(format!(
                "it needs {bytes} bytes at offset {start} of the data section, which has only {room}; the file ends too early or its header is damaged"
            )));
        }
        if let Some(b) = before
            && start < b.offset + b.bytes
        {
            return Err(wrong(format!(
                "its {bytes} bytes at offset {start} overlap tensor '{}' ({} bytes at offset {})",
                b.name, b.bytes, b.offset
            )));
        }
        before = Some(t);
    }
    Ok(())
}

struct Cursor<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn check_count(&self, what: &'static str, count: u64, least: u64) -> Result<(), GgufError> {
        let left = self.left() as u64;
        if count > left / least {
            return Err(GgufError::Count {
                file: self.file.into(),
                what,
                count,
                left,
            });
        }
        Ok(())
    }

    fn take(&mut self, n: u64, what: impl Fn() -> String) -> Result<&'a [u8], GgufError> {
        let left = self.left() as u64;
        if n > left {
            return Err(GgufError::Truncated {
                file: self.file.into(),
                what: what(),
                needed: n,
                at: self.at as u64,
                left,
            });
        }
        let taken = &self.bytes[self.at..][..n as usize];
        self.at += n as usize;
        Ok(taken)
    }

    fn u32(&mut self, what: impl Fn() -> String) -> Result<u32, GgufError> {
        let mut out = [0; 4];
        out.copy_from_slice(self.take(4, what)?);
        Ok(u32::from_le_bytes(out))
    }

    fn u64(&mut self, what: impl Fn() -> String) -> Result<u64, GgufError> {
        let mut out = [0; 8];
        out.copy_from_slice(self.take(8, what)?);
        Ok(u64::from_le_bytes(out))
    }

    /// A string of the value of `key`.
    fn string(&mut self, key: &str) -> Result<&'a str, GgufError> {
        let length = self.u64(|| format!("the length of a string of '{key}'"))?;
        let bytes = self.take(length, || value_of(key))?;
        std::str::from_utf8(bytes)
            .map_err(|_| GgufError::metadata(self.file, quoted(key), "its string is not UTF-8"))
    }
}
