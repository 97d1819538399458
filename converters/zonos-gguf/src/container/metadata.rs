//! The metadata of a file, in its order.

use std::collections::HashMap;

use super::{Array, Value};

/// Keys and values in file order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// No entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// Entries in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Appends an entry; false, and no change, if the key is there.
    pub(crate) fn push(&mut self, key: String, value: Value) -> bool {
        if self.index.contains_key(&key) {
            return false;
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        true
    }

    /// Sets a value at the end of the file; an entry of that key is removed first, as ggml does.
    pub fn set(&mut self, key: impl Into<String>, value: Value) {
        let key = key.into();
        self.remove(&key);
        self.push(key, value);
    }

    /// Removes an entry and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.index.remove(key)?;
        for i in self.index.values_mut() {
            *i -= usize::from(*i > at);
        }
        Some(self.entries.remove(at).1)
    }
}

impl<K: Into<String>> FromIterator<(K, Value)> for Metadata {
    /// A key that comes twice keeps its last value, at the end.
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(entries: I) -> Self {
        let mut out = Self::new();
        for (key, value) in entries {
            out.set(key, value);
        }
        out
    }
}

/// A Rust type that a metadata value can be read as. Integers of any width fit where the value does;
/// floats of either width read as the other.
pub trait FromValue: Sized {
    /// What an error says was expected.
    const EXPECTED: &'static str;

    /// The value, if it fits.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl FromValue for $t {
            const EXPECTED: &'static str = stringify!($t);

            fn from_value(value: &Value) -> Option<Self> {
                value.as_integer()?.try_into().ok()
            }
        }
    )*};
}

integers!(u8, i8, u16, i16, u32, i32, u64, i64, usize);

impl FromValue for f32 {
    const EXPECTED: &'static str = "f32";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_float().map(|v| v as f32)
    }
}

impl FromValue for f64 {
    const EXPECTED: &'static str = "f64";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_float()
    }
}

impl FromValue for bool {
    const EXPECTED: &'static str = "bool";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

impl FromValue for String {
    const EXPECTED: &'static str = "string";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_str().map(Into::into)
    }
}

impl FromValue for Array {
    const EXPECTED: &'static str = "array";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_array().cloned()
    }
}

macro_rules! arrays {
    ($($t:ty => $name:literal),*) => {$(
        impl FromValue for Vec<$t> {
            const EXPECTED: &'static str = concat!("array of ", $name);

            fn from_value(value: &Value) -> Option<Self> {
                value.as_array()?.iter().map(|v| <$t>::from_value(&v)).collect()
            }
        }
    )*};
}

arrays!(u32 => "u32", i32 => "i32", u64 => "u64", i64 => "i64", f32 => "f32", String => "string");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_set_again_moves_to_the_end() {
        let mut m: Metadata = [
            ("a", Value::U32(1)),
            ("b", Value::U32(2)),
            ("c", Value::U32(3)),
        ]
        .into_iter()
        .collect();
        m.set("a", Value::F32(0.5));
        let keys: Vec<_> = m.iter().map(|(k, _)| k).collect();
        assert_eq!(keys, ["b", "c", "a"]);
        assert_eq!(m.get("c"), Some(&Value::U32(3)));
        assert_eq!(m.remove("b"), Some(Value::U32(2)));
        assert_eq!(m.get("a"), Some(&Value::F32(0.5)));
        assert_eq!((m.len(), m.get("b")), (2, None));
    }

    #[test]
    fn integers_fit_or_do_not() {
        assert_eq!(u32::from_value(&Value::I64(7)), Some(7));
        assert_eq!(u32::from_value(&Value::I32(-1)), None);
        assert_eq!(u8::from_value(&Value::U64(256)), None);
        assert_eq!(u32::from_value(&Value::F32(7.0)), None);
        assert_eq!(f32::from_value(&Value::F64(0.5)), Some(0.5));
        let a = Value::Array(Array::of_i32(&[0, 1, -2]));
        assert_eq!(Vec::<i32>::from_value(&a), Some(vec![0, 1, -2]));
        assert_eq!(Vec::<u32>::from_value(&a), None);
        let s = Value::Array(Array::of_strings(&["", "ö"]));
        assert_eq!(
            Vec::<String>::from_value(&s),
            Some(vec![String::new(), "ö".into()])
        );
    }
}
