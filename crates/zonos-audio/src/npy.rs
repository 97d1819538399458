//! NumPy `.npy` arrays, in and out.
//!
//! Reads format versions 1 to 3 with booleans, integers and floats of either byte order, in C
//! order, of any number of axes (`()` is a single number). Files are not trusted: the header is
//! bounded and checked before it is parsed, and the shape is checked against the size of the file
//! before anything is allocated. Writes little-endian version 1 files atomically.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use half::f16;
use npyz::{DType, NpyFile, NpyHeader, Order, TypeChar, WriterBuilder};

use crate::atomic::{AtomicFile, FileError};

/// Header text longer than this is refused; NumPy's own limit.
const MAX_HEADER: usize = 10_000;

/// Nesting of the header's Python literal; a shape inside the dictionary is depth 2.
const MAX_DEPTH: usize = 8;

/// A difference from a whole number that still counts as rounding noise, see [`NpyArray::to_i64`].
pub const INTEGER_TOLERANCE: f64 = 1e-3;

/// Why a `.npy` file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NpyError {
    /// The file could not be opened or read.
    #[error("{}: {}", path.display(), unread(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no `.npy` array this module accepts.
    #[error("{}: {field}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The part of the file: `magic`, `header`, `descr`, `fortran_order`, `shape` or `data`.
        field: &'static str,
        /// What was expected and found.
        problem: String,
    },
    /// An element is not what the caller needs.
    #[error("{}: element {index:?} is {value}; expected {expected}", path.display())]
    Element {
        /// The file.
        path: PathBuf,
        /// Position along each axis.
        index: Vec<usize>,
        /// The value found.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
    /// The file could not be written.
    #[error(transparent)]
    Write(#[from] FileError),
}

/// Why a file was not read, and what to do about it.
fn unread(source: &io::Error) -> String {
    let remedy = match source.kind() {
        io::ErrorKind::NotFound => "; check its name and folder",
        _ => "",
    };
    format!("cannot read: {source}{remedy}")
}

impl NpyError {
    pub(crate) fn format(path: &Path, field: &'static str, problem: impl Into<String>) -> Self {
        Self::Format {
            path: path.to_path_buf(),
            field,
            problem: problem.into(),
        }
    }
}

/// The elements of an array in the type of the file.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The variants are the element types.
pub enum NpyData {
    Bool(Vec<bool>),
    I8(Vec<i8>),
    I16(Vec<i16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U8(Vec<u8>),
    U16(Vec<u16>),
    U32(Vec<u32>),
    U64(Vec<u64>),
    F16(Vec<f16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

/// An array read from a `.npy` file, row-major.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("a.npy");
/// use zonos_audio::npy;
/// npy::write_i32(&path, &[2, 3], &[1, 2, 3, 4, 5, 6])?;
/// let array = npy::read(&path)?;
/// assert_eq!(array.shape(), &[2, 3]);
/// assert_eq!(array.to_f32(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NpyArray {
    path: PathBuf,
    shape: Vec<usize>,
    data: NpyData,
}

/// Calls `$body` with `$values` bound to the vector of whatever type the data have.
macro_rules! each {
    ($data:expr, $values:ident => $body:expr) => {
        match $data {
            NpyData::Bool($values) => $body,
            NpyData::I8($values) => $body,
            NpyData::I16($values) => $body,
            NpyData::I32($values) => $body,
            NpyData::I64($values) => $body,
            NpyData::U8($values) => $body,
            NpyData::U16($values) => $body,
            NpyData::U32($values) => $body,
            NpyData::U64($values) => $body,
            NpyData::F16($values) => $body,
            NpyData::F32($values) => $body,
            NpyData::F64($values) => $body,
        }
    };
}

/// An element as a number: `f64` for range and tolerance checks, exact `i64` where it is an integer.
trait Element: Copy + fmt::Display {
    fn float(self) -> f64;
    fn integer(self) -> Option<i64>;
}

macro_rules! integer_element {
    ($($t:ty),*) => {$(
        impl Element for $t {
            fn float(self) -> f64 {
                self as f64
            }
            fn integer(self) -> Option<i64> {
                i64::try_from(self).ok()
            }
        }
    )*};
}
integer_element!(i8, i16, i32, i64, u8, u16, u32, u64);

impl Element for bool {
    fn float(self) -> f64 {
        f64::from(u8::from(self))
    }
    fn integer(self) -> Option<i64> {
        Some(i64::from(self))
    }
}

fn near_integer(x: f64) -> Option<i64> {
    let whole = x.round();
    // 2^53: beyond it a float no longer tells neighbouring integers apart. NaN fails both tests.
    let exact = (x - whole).abs() <= INTEGER_TOLERANCE && whole.abs() <= 9_007_199_254_740_992.0;
    exact.then_some(whole as i64)
}

impl Element for f16 {
    fn float(self) -> f64 {
        self.to_f64()
    }
    fn integer(self) -> Option<i64> {
        // From 2048 on a half tells neighbouring integers no longer apart: 2049 is stored as 2048.
        near_integer(self.to_f64()).filter(|n| n.abs() < 2048)
    }
}

impl Element for f32 {
    fn float(self) -> f64 {
        f64::from(self)
    }
    fn integer(self) -> Option<i64> {
        near_integer(f64::from(self))
    }
}

impl Element for f64 {
    fn float(self) -> f64 {
        self
    }
    fn integer(self) -> Option<i64> {
        near_integer(self)
    }
}

impl NpyArray {
    /// The file the array came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of each axis; empty for a single number.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements in the type of the file.
    pub fn data(&self) -> &NpyData {
        &self.data
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each!(&self.data, v => v.len())
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as f32, rounded where the type is wider.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.data {
            NpyData::F32(v) => v.clone(),
            other => each!(other, v => v.iter().map(|x| x.float() as f32).collect()),
        }
    }

    /// The elements as integers; floats must lie within [`INTEGER_TOLERANCE`] of one, because some
    /// tools store ids as floats. Of half floats only magnitudes below 2048 are taken: above, they
    /// may have been rounded to another integer.
    ///
    /// # Errors
    /// An element that is no integer (NaN included) or does not fit.
    pub fn to_i64(&self) -> Result<Vec<i64>, NpyError> {
        each!(&self.data, v => v
            .iter()
            .enumerate()
            .map(|(i, x)| x.integer().ok_or_else(|| self.element_error(i, x, self.whole("a whole number"))))
            .collect())
    }

    /// As [`to_i64`](Self::to_i64), for 32-bit integers.
    ///
    /// # Errors
    /// An element that is no integer or does not fit.
    pub fn to_i32(&self) -> Result<Vec<i32>, NpyError> {
        each!(&self.data, v => v
            .iter()
            .enumerate()
            .map(|(i, x)| x
                .integer()
                .and_then(|n| i32::try_from(n).ok())
                .ok_or_else(|| self.element_error(i, x, self.whole("a whole number of 32 bits"))))
            .collect())
    }

    /// What [`to_i64`](Self::to_i64) and [`to_i32`](Self::to_i32) expect of an element; of one in an
    /// array of integers `of_integers`.
    fn whole(&self, of_integers: &'static str) -> &'static str {
        match self.data {
            NpyData::F16(_) => {
                "a whole number below 2048, up to which half floats hold them exactly; save it as <i4"
            }
            NpyData::F32(_) | NpyData::F64(_) => {
                "a whole number of 32 bits, or a float within 0.001 of one"
            }
            _ => of_integers,
        }
    }

    /// An error about the element at flat position `flat`, naming its place along each axis.
    pub fn element_error(
        &self,
        flat: usize,
        value: impl fmt::Display,
        expected: &'static str,
    ) -> NpyError {
        let mut rest = flat;
        let mut index = vec![0; self.shape.len()];
        for (place, &length) in index.iter_mut().zip(&self.shape).rev() {
            *place = rest % length.max(1);
            rest /= length.max(1);
        }
        NpyError::Element {
            path: self.path.clone(),
            index,
            value: value.to_string(),
            expected,
        }
    }

    /// An error about the shape, for callers that need another one.
    pub fn shape_error(&self, expected: impl fmt::Display) -> NpyError {
        NpyError::format(
            &self.path,
            "shape",
            format!("expected {expected}, found {:?}", self.shape),
        )
    }
}

/// Reads a `.npy` file.
///
/// # Errors
/// A file that cannot be read, is cut short or too long for its shape, is stored column by column,
/// or holds anything but plain numbers. Every message names the file.
pub fn read(path: impl AsRef<Path>) -> Result<NpyArray, NpyError> {
    let path = path.as_ref();
    let io = |source| NpyError::Io {
        path: path.to_path_buf(),
        source,
    };
    let (reader, size) = open(path).map_err(io)?;
    parse(path, reader, size, None)
}

/// Reads the shape of a `.npy` file and nothing else, so that a caller can refuse a large array
/// without its data.
///
/// # Errors
/// As [`read`], as far as the header and the size of the file tell.
pub fn read_shape(path: impl AsRef<Path>) -> Result<Vec<usize>, NpyError> {
    let path = path.as_ref();
    let (mut reader, size) = open(path).map_err(|source| NpyError::Io {
        path: path.to_path_buf(),
        source,
    })?;
    Ok(parse_header(path, &mut reader, size, None)?.shape)
}

/// As [`read`], and of a structured array reads the field of this name: its shape is that of the
/// array followed by the field's own.
///
/// # Errors
/// As [`read`]; a structured array without such a field of plain numbers.
pub fn read_field(path: impl AsRef<Path>, field: &str) -> Result<NpyArray, NpyError> {
    let path = path.as_ref();
    let (reader, size) = open(path).map_err(|source| NpyError::Io {
        path: path.to_path_buf(),
        source,
    })?;
    parse(path, reader, size, Some(field))
}

/// As [`read_shape`], for [`read_field`].
///
/// # Errors
/// As [`read_field`], as far as the header and the size of the file tell.
pub fn read_field_shape(path: impl AsRef<Path>, field: &str) -> Result<Vec<usize>, NpyError> {
    let path = path.as_ref();
    let (mut reader, size) = open(path).map_err(|source| NpyError::Io {
        path: path.to_path_buf(),
        source,
    })?;
    Ok(parse_header(path, &mut reader, size, Some(field))?.shape)
}

/// As [`read_field`], from memory; `name` stands for the file in messages.
///
/// # Errors
/// As [`read_field`].
pub fn field_from_bytes(
    name: impl AsRef<Path>,
    bytes: &[u8],
    field: &str,
) -> Result<NpyArray, NpyError> {
    parse(name.as_ref(), bytes, bytes.len() as u64, Some(field))
}

/// Opens a file that is one: opening a pipe would wait for its writer.
fn open(path: &Path) -> io::Result<(BufReader<File>, u64)> {
    let regular = |meta: &std::fs::Metadata| {
        meta.is_file()
            .then_some(())
            .ok_or_else(|| io::Error::other("not a regular file; give a .npy file"))
    };
    regular(&std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    let meta = file.metadata()?;
    regular(&meta)?;
    Ok((BufReader::new(file), meta.len()))
}

/// Reads a `.npy` array from memory; `name` stands for the file in messages.
///
/// # Errors
/// As [`read`].
pub fn from_bytes(name: impl AsRef<Path>, bytes: &[u8]) -> Result<NpyArray, NpyError> {
    parse(name.as_ref(), bytes, bytes.len() as u64, None)
}

/// What stands before the data.
struct Header {
    header: NpyHeader,
    kind: (TypeChar, u64),
    shape: Vec<usize>,
    /// Bytes of the data.
    bytes: u64,
    /// The part of each record that is wanted, in a structured array.
    part: Option<Part>,
}

/// One field of a record.
#[derive(Clone, Copy)]
struct Part {
    offset: usize,
    length: usize,
    record: usize,
}

/// Bytes of a value of this type; `None` where there is no such number.
fn width_of(dtype: &DType) -> Option<u64> {
    match dtype {
        DType::Plain(ty) => ty.num_bytes().map(|n| n as u64),
        DType::Array(n, inner) => n.checked_mul(width_of(inner)?),
        DType::Record(fields) => fields
            .iter()
            .try_fold(0_u64, |sum, field| sum.checked_add(width_of(&field.dtype)?)),
    }
}

/// A field of a structured type: its plain type, its own axes and its place in a record.
fn find_field(dtype: &DType, name: &str) -> Option<(npyz::TypeStr, Vec<u64>, Part)> {
    let DType::Record(fields) = dtype else {
        return None;
    };
    let at = fields.iter().position(|field| field.name == name)?;
    let offset = width_of(&DType::Record(fields[..at].to_vec()))?;
    let (mut inner, mut axes) = (&fields[at].dtype, Vec::new());
    while let DType::Array(n, next) = inner {
        axes.push(*n);
        inner = next;
    }
    let DType::Plain(ty) = inner else {
        return None;
    };
    let small = |n: u64| usize::try_from(n).ok();
    let part = Part {
        offset: small(offset)?,
        length: small(width_of(&fields[at].dtype)?)?,
        record: small(width_of(dtype)?)?,
    };
    Some((ty.clone(), axes, part))
}

fn parse_header(
    path: &Path,
    reader: &mut impl Read,
    size: u64,
    field: Option<&str>,
) -> Result<Header, NpyError> {
    let bad = |field, problem: String| NpyError::format(path, field, problem);
    let head = read_header(path, reader, size)?;
    let header =
        NpyHeader::from_reader(head.as_slice()).map_err(|e| bad("header", e.to_string()))?;

    if header.order() != Order::C && header.shape().len() > 1 {
        return Err(bad(
            "fortran_order",
            "expected False (row-major), found True; save it with numpy.ascontiguousarray".into(),
        ));
    }
    let dtype = header.dtype();
    let found = field.and_then(|name| find_field(&dtype, name));
    let (ty, axes, part) = match (&dtype, found) {
        (DType::Plain(ty), _) => (ty.clone(), Vec::new(), None),
        (_, Some((ty, axes, part))) => (ty, axes, Some(part)),
        (_, None) => {
            let wanted =
                field.map_or_else(String::new, |name| format!(" or a field '{name}' of such"));
            return Err(bad(
                "descr",
                format!(
                    "expected plain numbers{wanted}, found the structured type {}",
                    dtype.descr()
                ),
            ));
        }
    };
    let kind = (ty.type_char(), ty.size_field());
    let width = match kind {
        (TypeChar::Bool, 1) => 1,
        (TypeChar::Int | TypeChar::Uint, w @ (1 | 2 | 4 | 8)) => w,
        (TypeChar::Float, w @ (2 | 4 | 8)) => w,
        _ => {
            return Err(bad(
                "descr",
                format!(
                    "expected booleans, integers or floats of up to 8 bytes, found {:?}",
                    ty.to_string()
                ),
            ));
        }
    };

    let stored = size.saturating_sub(head.len() as u64);
    let wanted = header
        .shape()
        .iter()
        .try_fold(part.map_or(width, |p| p.record as u64), |bytes, &n| {
            bytes.checked_mul(n)
        });
    if wanted != Some(stored) {
        return Err(bad(
            "data",
            format!(
                "shape {:?} of {ty} needs {} bytes, but {stored} follow the header; the file is cut short or damaged",
                header.shape(),
                wanted.map_or_else(|| "more than 2^64".into(), |w| w.to_string()),
            ),
        ));
    }
    let shape = header
        .shape()
        .iter()
        .chain(&axes)
        .map(|&n| usize::try_from(n))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| {
            bad(
                "shape",
                format!("{:?} is too large for this machine", header.shape()),
            )
        })?;

    // The plain array that the field is, once its parts lie together.
    let header = match part {
        None => header,
        Some(_) => {
            let lengths: Vec<u64> = header.shape().iter().chain(&axes).copied().collect();
            plain_header(ty, &lengths).map_err(|e| bad("header", e.to_string()))?
        }
    };
    Ok(Header {
        header,
        kind,
        shape,
        bytes: stored,
        part,
    })
}

fn plain_header(ty: npyz::TypeStr, shape: &[u64]) -> io::Result<NpyHeader> {
    let mut text = Vec::new();
    npyz::WriteOptions::<f32>::new()
        .dtype(DType::new_scalar(ty))
        .shape(shape)
        .writer(&mut text)
        .write_header_only()?;
    NpyHeader::from_reader(text.as_slice())
}

fn parse(
    path: &Path,
    mut reader: impl Read,
    size: u64,
    field: Option<&str>,
) -> Result<NpyArray, NpyError> {
    let io = |source| NpyError::Io {
        path: path.to_path_buf(),
        source,
    };
    let Header {
        header,
        kind,
        shape,
        bytes,
        part,
    } = parse_header(path, &mut reader, size, field)?;
    // A sparse file can claim any size, and the reader below allocates all of it at once; this
    // attempt fails with a message where that would end the process.
    let fits =
        usize::try_from(bytes).is_ok_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
    if !fits {
        return Err(NpyError::format(
            path,
            "data",
            format!("{bytes} bytes for shape {shape:?} do not fit into memory"),
        ));
    }
    let data = match part {
        None => elements(header, kind, reader),
        Some(part) => {
            gather(reader, bytes, part).and_then(|values| elements(header, kind, values.as_slice()))
        }
    }
    .map_err(io)?;
    Ok(NpyArray {
        path: path.to_path_buf(),
        shape,
        data,
    })
}

/// The wanted part of each record, one after another.
fn gather(mut reader: impl Read, bytes: u64, part: Part) -> io::Result<Vec<u8>> {
    let mut values = Vec::new();
    if bytes == 0 {
        return Ok(values);
    }
    // The data are whole records, so one is no longer than the file.
    let mut record = vec![0; part.record];
    let records = bytes.checked_div(part.record as u64).unwrap_or(0);
    for _ in 0..records {
        reader.read_exact(&mut record)?;
        values.extend_from_slice(&record[part.offset..part.offset + part.length]);
    }
    Ok(values)
}

fn elements(header: NpyHeader, kind: (TypeChar, u64), reader: impl Read) -> io::Result<NpyData> {
    let file = NpyFile::with_header(header, reader);
    Ok(match kind {
        (TypeChar::Bool, _) => NpyData::Bool(file.into_vec()?),
        (TypeChar::Int, 1) => NpyData::I8(file.into_vec()?),
        (TypeChar::Int, 2) => NpyData::I16(file.into_vec()?),
        (TypeChar::Int, 4) => NpyData::I32(file.into_vec()?),
        (TypeChar::Int, _) => NpyData::I64(file.into_vec()?),
        (TypeChar::Uint, 1) => NpyData::U8(file.into_vec()?),
        (TypeChar::Uint, 2) => NpyData::U16(file.into_vec()?),
        (TypeChar::Uint, 4) => NpyData::U32(file.into_vec()?),
        (TypeChar::Uint, _) => NpyData::U64(file.into_vec()?),
        (_, 2) => NpyData::F16(file.into_vec()?),
        (_, 4) => NpyData::F32(file.into_vec()?),
        _ => NpyData::F64(file.into_vec()?),
    })
}

/// Reads everything before the data and makes sure that the header is one a parser can be given.
fn read_header(path: &Path, reader: &mut impl Read, size: u64) -> Result<Vec<u8>, NpyError> {
    let bad = |field, problem: String| NpyError::format(path, field, problem);
    let io = |source| NpyError::Io {
        path: path.to_path_buf(),
        source,
    };
    let mut head = Vec::with_capacity(128);
    reader.take(8).read_to_end(&mut head).map_err(io)?;
    if head.len() < 8 || &head[..6] != b"\x93NUMPY" {
        return Err(bad(
            "magic",
            format!("not a .npy file; it {}", describe(&head)),
        ));
    }
    let length_bytes = match head[6] {
        1 => 2,
        2 | 3 => 4,
        other => {
            return Err(bad(
                "header",
                format!("expected format version 1, 2 or 3, found {other}"),
            ));
        }
    };
    reader
        .take(length_bytes)
        .read_to_end(&mut head)
        .map_err(io)?;
    let length = match head[8..] {
        [a, b] if length_bytes == 2 => usize::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX),
        _ => return Err(bad("header", "the file ends inside it".into())),
    };
    if length > MAX_HEADER {
        return Err(bad(
            "header",
            format!("expected at most {MAX_HEADER} bytes, found {length}"),
        ));
    }
    let end = head.len() + length;
    if end as u64 > size {
        return Err(bad("header", "the file ends inside it".into()));
    }
    reader
        .take(length as u64)
        .read_to_end(&mut head)
        .map_err(io)?;
    if head.len() != end {
        return Err(bad("header", "the file ends inside it".into()));
    }
    let text = &head[end - length..];
    check_literal(text).map_err(|problem| bad("header", problem.into()))?;
    Ok(head)
}

/// The header parser recurses for each bracket and multiplies the lengths without a check, so
/// nesting and products are bounded first. Only what NumPy writes gets through: string keys,
/// booleans, decimal numbers and brackets.
fn check_literal(text: &[u8]) -> Result<(), &'static str> {
    let (mut depth, mut quote, mut product) = (0_usize, None, 1_u64);
    let mut number: Option<u64> = None;
    for &b in text {
        if quote.is_none() && b.is_ascii_digit() {
            let digit = u64::from(b - b'0');
            number = Some(
                number
                    .unwrap_or(0)
                    .checked_mul(10)
                    .and_then(|n| n.checked_add(digit))
                    .ok_or("a length does not fit 64 bits")?,
            );
            continue;
        }
        if let Some(n) = number.take() {
            product = product
                .checked_mul(n.max(1))
                .ok_or("the product of the lengths does not fit 64 bits")?;
        }
        match (quote, b) {
            (_, b'\\') => return Err("a backslash is not expected"),
            (Some(q), _) if q == b => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(b),
            (None, b'(' | b'[' | b'{') => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err("nested too deeply");
                }
            }
            (None, b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            (None, b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' | b'a'..=b'z' | b'A'..=b'Z') => {}
            (None, _) => return Err("an unexpected character"),
        }
    }
    if quote.is_some() {
        return Err("a string without its end");
    }
    Ok(())
}

fn describe(head: &[u8]) -> &'static str {
    match head {
        [] => "is empty",
        [b'P', b'K', ..] => "is a zip archive, perhaps .npz; save a single array with numpy.save",
        [b'v', b'e', b'r', b's', b'i', b'o', b'n', ..] => {
            "looks like a Git LFS pointer; fetch the real file with `git lfs pull`"
        }
        [b'<', ..] => "looks like a web page",
        _ => "does not begin with the .npy signature",
    }
}

/// Writes `values` as `<f4` with `shape`, complete or not at all.
///
/// # Errors
/// `shape` does not describe as many elements as there are, or the file cannot be written.
pub fn write_f32(path: impl AsRef<Path>, shape: &[usize], values: &[f32]) -> Result<(), NpyError> {
    Ok(stage_f32(path, shape, values)?.commit()?)
}

/// As [`write_f32`], but leaves the commit to the caller, for files that belong together; see
/// [`AtomicFile::commit_all`].
///
/// # Errors
/// As [`write_f32`].
pub fn stage_f32(
    path: impl AsRef<Path>,
    shape: &[usize],
    values: &[f32],
) -> Result<AtomicFile, NpyError> {
    stage(
        path.as_ref(),
        "<f4",
        shape,
        values.len(),
        values.iter().map(|x| x.to_le_bytes()),
    )
}

/// Writes `values` as `<i4` with `shape`, complete or not at all.
///
/// # Errors
/// As [`write_f32`].
pub fn write_i32(path: impl AsRef<Path>, shape: &[usize], values: &[i32]) -> Result<(), NpyError> {
    Ok(stage_i32(path, shape, values)?.commit()?)
}

/// As [`write_i32`], but leaves the commit to the caller, for files that belong together; see
/// [`AtomicFile::commit_all`].
///
/// # Errors
/// As [`write_f32`].
pub fn stage_i32(
    path: impl AsRef<Path>,
    shape: &[usize],
    values: &[i32],
) -> Result<AtomicFile, NpyError> {
    stage(
        path.as_ref(),
        "<i4",
        shape,
        values.len(),
        values.iter().map(|x| x.to_le_bytes()),
    )
}

fn stage(
    path: &Path,
    descr: &str,
    shape: &[usize],
    count: usize,
    values: impl Iterator<Item = [u8; 4]>,
) -> Result<AtomicFile, NpyError> {
    let described = shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(d));
    if described != Some(count) {
        return Err(NpyError::format(
            path,
            "shape",
            format!("{shape:?} does not describe the {count} values to write"),
        ));
    }
    let ty = descr
        .parse()
        .map_err(|e| NpyError::format(path, "descr", format!("{e}")))?;
    let shape: Vec<u64> = shape.iter().map(|&d| d as u64).collect();
    let mut file = AtomicFile::create(path)?;
    let written = (|| {
        npyz::WriteOptions::<f32>::new()
            .dtype(DType::new_scalar(ty))
            .shape(&shape)
            .writer(&mut file)
            .write_header_only()?;
        for bytes in values {
            file.write_all(&bytes)?;
        }
        Ok(())
    })();
    written.map_err(|e| NpyError::Write(file.error(e)))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_shape_alone_and_sizes_beyond_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        write_i32(&path, &[2, 3], &[0; 6]).unwrap();
        assert_eq!(read_shape(&path).unwrap(), [2, 3]);
        // A sparse file of an exabyte; not every file system takes one.
        let bytes = std::fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes[10..bytes.len() - 24]).into_owned();
        let shape = text.replace("(2, 3)", "(288230376151711744,)");
        let huge = file(1, shape.trim_end(), &[]);
        std::fs::write(&path, &huge).unwrap();
        let length = huge.len() as u64 + (1 << 60);
        let grown = File::options().write(true).open(&path).unwrap();
        if grown.set_len(length).is_ok() {
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("memory"), "{error}");
        }
    }

    fn file(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
        let mut out = b"\x93NUMPY".to_vec();
        out.extend([version, 0]);
        let text = format!("{header}\n");
        if version == 1 {
            out.extend((text.len() as u16).to_le_bytes());
        } else {
            out.extend((text.len() as u32).to_le_bytes());
        }
        out.extend(text.as_bytes());
        out.extend(data);
        out
    }

    /// Written by NumPy, every kind that is read as a speaker file may be.
    #[test]
    fn a_field_of_a_structured_array() {
        let text = |descr: &str, shape: &str| {
            format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}")
        };
        let descr = "[('id', '<i4'), ('', '|V4'), ('emb', '<f4', (2,)), ('x', '|u1')]";
        let mut data = Vec::new();
        for i in 0..3_u8 {
            data.extend([i; 8]);
            data.extend(f32::from(i).to_le_bytes());
            data.extend((f32::from(i) + 0.5).to_le_bytes());
            data.push(i);
        }
        let bytes = file(1, &text(descr, "(3,)"), &data);
        let array = field_from_bytes("a.npy", &bytes, "emb").unwrap();
        assert_eq!(array.shape(), [3, 2]);
        assert_eq!(array.to_f32(), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
        let scalars = field_from_bytes("a.npy", &bytes, "x").unwrap();
        assert_eq!(scalars.data(), &NpyData::U8(vec![0, 1, 2]));
        // A plain array has no fields and needs none.
        let plain = file(1, &header("<f4", "(1,)"), &1.0_f32.to_le_bytes());
        assert_eq!(
            field_from_bytes("a.npy", &plain, "emb").unwrap().to_f32(),
            [1.0]
        );
        for (bytes, needle) in [
            (file(1, &text(descr, "(3,)"), &data[1..]), "cut short"),
            (
                file(1, &text("[('a', '<f4')]", "(1,)"), &[0; 4]),
                "field 'emb'",
            ),
            (
                file(1, &text("[('emb', '|S4')]", "(1,)"), &[0; 4]),
                "floats of up to 8 bytes",
            ),
            (
                file(1, &text("[('emb', [('a', '<f4')])]", "(1,)"), &[0; 4]),
                "field 'emb'",
            ),
            (
                file(
                    1,
                    &text("[('emb', '<f4', (4294967296, 4294967295))]", "(1,)"),
                    &[0; 4],
                ),
                "",
            ),
            (file(1, &text("[]", "(1,)"), &[]), ""),
            (
                file(
                    1,
                    &text("[('emb', '<f4', (4611686018427387904,))]", "(0,)"),
                    &[1],
                ),
                "",
            ),
        ] {
            let error = field_from_bytes("a.npy", &bytes, "emb").unwrap_err();
            assert!(error.to_string().contains(needle), "{needle}: {error}");
        }
        // And without a field to ask for, as ever.
        assert!(from_bytes("a.npy", &bytes).is_err());
    }

    fn header(descr: &str, shape: &str) -> String {
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}")
    }

    fn array(descr: &str, shape: &str, data: &[u8]) -> Result<NpyArray, NpyError> {
        from_bytes("a.npy", &file(1, &header(descr, shape), data))
    }

    fn message(result: Result<NpyArray, NpyError>) -> String {
        let text = result.unwrap_err().to_string();
        assert!(
            text.starts_with("a.npy: ") && !text.contains('\n'),
            "{text}"
        );
        text
    }

    #[test]
    fn every_number_type() {
        for (descr, bytes, want) in [
            ("|b1", vec![1], NpyData::Bool(vec![true])),
            ("|i1", vec![0xff], NpyData::I8(vec![-1])),
            ("|u1", vec![0xff], NpyData::U8(vec![255])),
            ("<i2", vec![1, 2], NpyData::I16(vec![513])),
            (">i2", vec![1, 2], NpyData::I16(vec![258])),
            ("<u2", vec![1, 2], NpyData::U16(vec![513])),
            ("<i4", vec![0xfe, 0xff, 0xff, 0xff], NpyData::I32(vec![-2])),
            ("<u4", vec![1, 0, 0, 0], NpyData::U32(vec![1])),
            (
                "<i8",
                (-3_i64).to_le_bytes().to_vec(),
                NpyData::I64(vec![-3]),
            ),
            ("<u8", 7_u64.to_le_bytes().to_vec(), NpyData::U64(vec![7])),
            (
                "<f2",
                vec![0x00, 0x3e],
                NpyData::F16(vec![f16::from_f32(1.5)]),
            ),
            (
                "<f4",
                2.5_f32.to_le_bytes().to_vec(),
                NpyData::F32(vec![2.5]),
            ),
            (
                ">f8",
                2.5_f64.to_be_bytes().to_vec(),
                NpyData::F64(vec![2.5]),
            ),
        ] {
            for version in [1, 2, 3] {
                for (shape, axes) in [("()", vec![]), ("(1,)", vec![1]), ("(1, 1,)", vec![1, 1])] {
                    let read =
                        from_bytes("a.npy", &file(version, &header(descr, shape), &bytes)).unwrap();
                    assert_eq!(read.data(), &want, "{descr}");
                    assert_eq!(read.shape(), axes);
                }
            }
        }
    }

    #[test]
    fn empty_axes() {
        let read = array("<f4", "(0, 9)", &[]).unwrap();
        assert!(read.is_empty());
        assert_eq!(read.shape(), &[0, 9]);
    }

    #[test]
    fn integers_from_floats() {
        let bytes: Vec<u8> = [3.0005_f32, -1.0, 1e9]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        let read = array("<f4", "(3,)", &bytes).unwrap();
        assert_eq!(read.to_i64().unwrap(), [3, -1, 1_000_000_000]);
        for x in [0.5_f32, f32::NAN, f32::INFINITY, 1e20] {
            let e = array("<f4", "(1, 1)", &x.to_le_bytes())
                .unwrap()
                .to_i64()
                .unwrap_err();
            assert!(e.to_string().contains("element [0, 0]"), "{e}");
        }
        let wide = array("<u8", "(1,)", &u64::MAX.to_le_bytes()).unwrap();
        assert!(wide.to_i64().is_err());
        let wide = array("<i8", "(1,)", &(1_i64 << 40).to_le_bytes()).unwrap();
        assert_eq!(wide.to_i64().unwrap(), [1 << 40]);
        assert!(wide.to_i32().is_err());
        let told = array("<f4", "(1,)", &7.4_f32.to_le_bytes())
            .unwrap()
            .to_i32();
        let told = told.unwrap_err().to_string();
        assert!(
            told.contains("7.4") && told.contains("a float within 0.001 of one"),
            "{told}"
        );
        // Half floats from 2048 on may have been another integer before.
        let half = |x: f32| {
            let bytes = f16::from_f32(x).to_le_bytes();
            array("<f2", "(1,)", &bytes).unwrap().to_i32()
        };
        assert_eq!(half(2047.0).unwrap(), [2047]);
        assert_eq!(half(-1.0).unwrap(), [-1]);
        for x in [2048.0, 2049.0, 4095.0] {
            let told = half(x).unwrap_err().to_string();
            assert!(told.contains("half floats"), "{told}");
        }
    }

    #[test]
    fn refusals() {
        assert!(message(array("<f4", "(2,)", &[0; 4])).contains("needs 8 bytes, but 4"));
        assert!(message(array("<f4", "(2,)", &[0; 9])).contains("data"));
        assert!(message(array("<f4", "(4294967296, 4294967295)", &[])).contains("data"));
        assert!(message(array("<f4", "(4294967296, 4294967296)", &[])).contains("64 bits"));
        assert!(message(array("<f4", "(99999999999999999999,)", &[])).contains("64 bits"));
        assert!(message(array("<f4", "(-1,)", &[])).contains("header"));
        assert!(message(array("<c8", "(1,)", &[0; 8])).contains("descr"));
        assert!(message(array("|O", "(1,)", &[0; 8])).contains("descr"));
        assert!(message(array("<U4", "(1,)", &[0; 16])).contains("descr"));
        let fortran = header("<f4", "(1, 1)").replace("False", "True");
        assert!(
            message(from_bytes("a.npy", &file(1, &fortran, &[0; 4]))).contains("fortran_order")
        );
        let record = "{'descr': [('emb', '<f4')], 'fortran_order': False, 'shape': (1,)}";
        assert!(message(from_bytes("a.npy", &file(1, record, &[0; 4]))).contains("structured"));
        let deep = format!("{{'shape': {}", "(".repeat(9000));
        assert!(message(from_bytes("a.npy", &file(1, &deep, &[]))).contains("nested"));
        let mut long = file(2, &header("<f4", "(1,)"), &[0; 4]);
        long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(message(from_bytes("a.npy", &long)).contains("at most"));
        for (bytes, hint) in [
            (&b""[..], "empty"),
            (b"version https://git-lfs", "LFS"),
            (b"<!DOCTYPE html>", "web page"),
            (b"PK\x03\x04....", ".npz"),
            (b"\x93NUMPY", "signature"),
            (b"\x93NUMPY\x09\x00\x00\x00", "version"),
        ] {
            assert!(message(from_bytes("a.npy", bytes)).contains(hint), "{hint}");
        }
    }

    #[test]
    fn files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.npy");
        let missing = read(&path).unwrap_err().to_string();
        assert!(
            missing.ends_with("; check its name and folder"),
            "{missing}"
        );
        assert!(read(dir.path()).is_err());
        write_f32(&path, &[2, 2], &[1.0, -2.5, 0.0, f32::MAX]).unwrap();
        let back = read(&path).unwrap();
        assert_eq!(
            (back.shape(), back.to_f32()),
            (&[2, 2][..], vec![1.0, -2.5, 0.0, f32::MAX])
        );
        write_i32(&path, &[], &[-7]).unwrap();
        let back = read(&path).unwrap();
        assert_eq!(
            (back.shape(), back.data()),
            (&[][..], &NpyData::I32(vec![-7]))
        );
        assert_eq!(std::fs::metadata(&path).unwrap().len() % 64, 4);
        let e = write_f32(&path, &[3], &[0.0]).unwrap_err().to_string();
        assert!(e.contains("[3]"), "{e}");
        assert!(write_f32(dir.path().join("no/x.npy"), &[1], &[0.0]).is_err());
        assert_eq!(read(&path).unwrap().len(), 1);
    }

    proptest! {
        #[test]
        fn round_trip(rows in 0_usize..6, cols in 0_usize..6, seed in any::<u32>()) {
            let values: Vec<f32> = (0..rows * cols).map(|i| f32::from_bits(seed ^ (i as u32) << 8)).collect();
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("r.npy");
            write_f32(&path, &[rows, cols], &values).unwrap();
            let back = read(&path).unwrap();
            prop_assert_eq!(back.shape(), &[rows, cols]);
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&back.to_f32()), bits(&values));
        }

        #[test]
        fn truncation_is_an_error(cut in 0_usize..96) {
            let whole = file(1, &header("<i4", "(2, 3)"), &[1; 24]);
            prop_assume!(cut < whole.len());
            prop_assert!(from_bytes("a.npy", &whole[..cut]).is_err());
        }

        #[test]
        fn damage_never_panics(version in 1_u8..4, flips in prop::collection::vec((0_usize..120, any::<u8>()), 0..6)) {
            let mut bytes = file(version, &header("<i4", "(2, 3)"), &[1; 24]);
            for (at, with) in flips {
                if let Some(b) = bytes.get_mut(at) {
                    *b ^= with;
                }
            }
            if let Ok(array) = from_bytes("a.npy", &bytes) {
                prop_assert_eq!(array.len(), array.shape().iter().product::<usize>());
                let _ = array.to_i64();
            }
        }

        #[test]
        fn noise_never_panics(text in "[{}()\\[\\]', :a-z0-9TF<>|_-]{0,80}") {
            let _ = from_bytes("a.npy", &file(1, &text, &[0; 8]));
            let _ = from_bytes("a.npy", &file(1, &header("<f4", &text), &[0; 8]));
        }
    }
}
