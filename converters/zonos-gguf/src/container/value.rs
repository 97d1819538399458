//! Metadata values.

use std::fmt;

macro_rules! value_types {
    ($($variant:ident = $id:literal, $name:literal, $size:literal;)*) => {
        /// The type of a metadata value or of an array's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "named after what they hold")]
        pub enum ValueType {
            $($variant = $id,)*
        }

        impl ValueType {
            /// The type with this number in a file.
            pub fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// A short name: `u32`, `string`, `array`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Bytes in a file: of a number or bool exactly, of a string or array at least.
            pub(crate) fn least_bytes(self) -> usize {
                match self {
                    $(Self::$variant => $size,)*
                }
            }
        }
    };
}

value_types! {
    U8 = 0, "u8", 1;
    I8 = 1, "i8", 1;
    U16 = 2, "u16", 2;
    I16 = 3, "i16", 2;
    U32 = 4, "u32", 4;
    I32 = 5, "i32", 4;
    F32 = 6, "f32", 4;
    Bool = 7, "bool", 1;
    String = 8, "string", 8;
    Array = 9, "array", 12;
    U64 = 10, "u64", 8;
    I64 = 11, "i64", 8;
    F64 = 12, "f64", 8;
}

impl ValueType {
    /// The number that stands for the type in a file.
    pub fn id(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "named after what they hold")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    /// Any byte but 0 reads as true, and is written as 1.
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// Its type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// What an error calls it: `u32`, `array of i32`.
    pub fn described(&self) -> String {
        match self {
            Self::Array(a) => format!("array of {} {}", a.len(), a.element_type()),
            other => other.value_type().to_string(),
        }
    }

    /// An integer of any width.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// A float of either width.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// A string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// A bool.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// An array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }

    /// Reads a number or bool from exactly its bytes.
    pub(crate) fn scalar(value_type: ValueType, bytes: &[u8]) -> Option<Self> {
        Some(match value_type {
            ValueType::U8 => Self::U8(u8::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::Bool => Self::Bool(*bytes.first()? != 0),
            ValueType::U64 => Self::U64(u64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::String | ValueType::Array => return None,
        })
    }

    /// Appends the value as a file holds it, its type aside.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(v) => out.extend(v.to_le_bytes()),
            Self::I8(v) => out.extend(v.to_le_bytes()),
            Self::U16(v) => out.extend(v.to_le_bytes()),
            Self::I16(v) => out.extend(v.to_le_bytes()),
            Self::U32(v) => out.extend(v.to_le_bytes()),
            Self::I32(v) => out.extend(v.to_le_bytes()),
            Self::F32(v) => out.extend(v.to_le_bytes()),
            Self::Bool(v) => out.push((*v).into()),
            Self::String(v) => put_string(out, v),
            Self::Array(a) => {
                out.extend(a.element.id().to_le_bytes());
                out.extend((a.len as u64).to_le_bytes());
                out.extend(&a.raw);
            }
            Self::U64(v) => out.extend(v.to_le_bytes()),
            Self::I64(v) => out.extend(v.to_le_bytes()),
            Self::F64(v) => out.extend(v.to_le_bytes()),
        }
    }
}

pub(crate) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// For a listing: strings as they are, an array as its type and its first elements.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::String(v) => f.write_str(&crate::shown::shown(v)),
            Self::Array(a) => {
                f.write_str("[")?;
                for (i, v) in a.iter().take(32).enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    v.fmt(f)?;
                }
                if a.len() > 32 {
                    write!(f, ", ... {} in all", a.len())?;
                }
                f.write_str("]")
            }
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
        }
    }
}

/// An array of numbers, bools or strings, kept as the file holds it: it takes no more memory than
/// it takes there, however short its strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    element: ValueType,
    len: usize,
    raw: Vec<u8>,
}

impl Array {
    /// `raw` has been checked: whole elements, strings of UTF-8.
    pub(crate) fn from_raw(element: ValueType, len: usize, raw: Vec<u8>) -> Self {
        Self { element, len, raw }
    }

    /// Of u32.
    pub fn of_u32(values: &[u32]) -> Self {
        Self::of(ValueType::U32, values.iter().map(|v| v.to_le_bytes()))
    }

    /// Of i32.
    pub fn of_i32(values: &[i32]) -> Self {
        Self::of(ValueType::I32, values.iter().map(|v| v.to_le_bytes()))
    }

    /// Of f32.
    pub fn of_f32(values: &[f32]) -> Self {
        Self::of(ValueType::F32, values.iter().map(|v| v.to_le_bytes()))
    }

    /// Of strings.
    pub fn of_strings<S: AsRef<str>>(values: &[S]) -> Self {
        let mut raw = Vec::new();
        for v in values {
            put_string(&mut raw, v.as_ref());
        }
        Self::from_raw(ValueType::String, values.len(), raw)
    }

    fn of<const N: usize>(
        element: ValueType,
        values: impl ExactSizeIterator<Item = [u8; N]>,
    ) -> Self {
        let len = values.len();
        Self::from_raw(element, len, values.flatten().collect())
    }

    /// Type of the elements; never an array.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, read as they are asked for.
    pub fn iter(&self) -> impl Iterator<Item = Value> + '_ {
        let mut rest = self.raw.as_slice();
        std::iter::from_fn(move || {
            let bytes = if self.element == ValueType::String {
                let (length, after) = rest.split_first_chunk::<8>()?;
                rest = after;
                usize::try_from(u64::from_le_bytes(*length)).ok()?
            } else {
                self.element.least_bytes()
            };
            let (value, after) = rest
                .split_at_checked(bytes)
                .filter(|(v, _)| self.element == ValueType::String || !v.is_empty())?;
            rest = after;
            if self.element == ValueType::String {
                return Some(Value::String(String::from_utf8_lossy(value).into_owned()));
            }
            Value::scalar(self.element, value)
        })
    }
}
