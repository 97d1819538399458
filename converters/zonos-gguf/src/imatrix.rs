//! The importance file of zonos2.cpp, `Z2IMAT01` (`gguf.md` 6).

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::shown::told;

const MAGIC: &[u8; 8] = b"Z2IMAT01";
/// The largest importance: sums over a block of importance times squared weight stay below the largest f32,
/// for weights up to the largest half.
const LARGEST: f32 = 1e20;

/// Why an importance file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {}", told(problem))]
pub struct ImatrixError {
    file: String,
    problem: String,
}

/// Mean squared inputs of one expert stack, `[experts, inputs]`; a row of zeros means none.
#[derive(Clone, Debug, PartialEq)]
pub struct ImatrixEntry {
    experts: usize,
    inputs: usize,
    values: Vec<f32>,
}

impl ImatrixEntry {
    /// `values` is `[experts, inputs]`, row after row; none if its length is another one.
    pub fn new(experts: usize, inputs: usize, values: Vec<f32>) -> Option<Self> {
        (experts.checked_mul(inputs) == Some(values.len())
            && u32::try_from(experts).is_ok()
            && u32::try_from(inputs).is_ok())
        .then_some(Self {
            experts,
            inputs,
            values,
        })
    }

    /// Number of experts.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Inputs of an expert: the length of a row of its matrix.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The importances of one expert; none for an expert that was not met often enough (its row
    /// sums to zero) or that there is not.
    pub fn expert(&self, expert: usize) -> Option<&[f32]> {
        let start = expert.checked_mul(self.inputs)?;
        let row = self.values.get(start..start.checked_add(self.inputs)?)?;
        (row.iter().map(|&v| f64::from(v)).sum::<f64>() > 0.0).then_some(row)
    }

    /// All values, `[experts, inputs]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }
}

/// Importances by the name of the tensor they belong to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imatrix {
    /// Sorted by the bytes of the name, as they are written.
    pub entries: BTreeMap<String, ImatrixEntry>,
}

impl Imatrix {
    /// Reads a file. `file` is what errors call it.
    ///
    /// # Errors
    /// If it is no importance file, ends early or late, names a tensor twice, or holds a value that
    /// is negative, not finite or above 1e20.
    pub fn read(file: &str, bytes: &[u8]) -> Result<Self, ImatrixError> {
        Self::parse(bytes).map_err(|problem| ImatrixError {
            file: file.into(),
            problem,
        })
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Err("not an importance file: it does not start with 'Z2IMAT01'".into());
        };
        let mut rest = rest;
        let count = u32_of(&mut rest, "the number of entries")?;
        let mut entries = BTreeMap::new();
        for i in 0..count {
            let length = u32_of(&mut rest, &format!("entry {i} of {count}"))?;
            let name = bytes_of(&mut rest, length.into(), &format!("the name of entry {i}"))?;
            let name = std::str::from_utf8(name)
                .map_err(|_| format!("the name of entry {i} is not UTF-8"))?;
            let experts = u32_of(&mut rest, &format!("the experts of '{name}'"))?;
            let inputs = u32_of(&mut rest, &format!("the inputs of '{name}'"))?;
            let size = u128::from(experts) * u128::from(inputs) * 4;
            let raw = bytes_of(&mut rest, size, &format!("the values of '{name}'"))?;
            let values: Vec<f32> = raw
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect();
            if let Some(bad) = values.iter().find(|v| !(0.0..=LARGEST).contains(*v)) {
                return Err(format!(
                    "'{name}' holds {bad}; importances are means of squares, from 0 to {LARGEST:e}"
                ));
            }
            let entry = ImatrixEntry {
                experts: experts as usize,
                inputs: inputs as usize,
                values,
            };
            if entries.insert(name.to_owned(), entry).is_some() {
                return Err(format!("'{name}' appears twice"));
            }
        }
        if !rest.is_empty() {
            return Err(format!("{} bytes follow the last entry", rest.len()));
        }
        Ok(Self { entries })
    }

    /// Writes the file.
    ///
    /// # Errors
    /// What the output says; a name or a number of entries past 2^32.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let small = |n: usize| {
            u32::try_from(n).map_err(|_| io::Error::other("more than 2^32 entries or bytes"))
        };
        out.write_all(MAGIC)?;
        out.write_all(&small(self.entries.len())?.to_le_bytes())?;
        for (name, entry) in &self.entries {
            out.write_all(&small(name.len())?.to_le_bytes())?;
            out.write_all(name.as_bytes())?;
            out.write_all(&small(entry.experts)?.to_le_bytes())?;
            out.write_all(&small(entry.inputs)?.to_le_bytes())?;
            for v in &entry.values {
                out.write_all(&v.to_le_bytes())?;
            }
        }
        Ok(())
    }
}

fn bytes_of<'a>(rest: &mut &'a [u8], n: u128, what: &str) -> Result<&'a [u8], String> {
    let left = rest.len();
    let cut = usize::try_from(n)
        .ok()
        .and_then(|n| rest.split_at_checked(n));
    let Some((taken, after)) = cut else {
        return Err(format!(
            "the file ends inside {what}: {n} bytes needed, {left} left"
        ));
    };
    *rest = after;
    Ok(taken)
}

fn u32_of(rest: &mut &[u8], what: &str) -> Result<u32, String> {
    let mut out = [0; 4];
    out.copy_from_slice(bytes_of(rest, 4, what)?);
    Ok(u32::from_le_bytes(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Imatrix {
        let mut m = Imatrix::default();
        for (name, experts) in [
            ("blk.2.ffn_up_exps.weight", 2),
            ("blk.10.ffn_up_exps.weight", 1),
        ] {
            let values = (0..experts * 3).map(|v| v as f32).collect();
            let entry = ImatrixEntry::new(experts, 3, values).unwrap();
            m.entries.insert(name.into(), entry);
        }
        m
    }

    #[test]
    fn written_and_read() {
        let mut bytes = Vec::new();
        example().write(&mut bytes).unwrap();
        assert_eq!(Imatrix::read("x", &bytes).unwrap(), example());
        // Byte order: the 1 of blk.10 comes before the 2 of blk.2.
        assert_eq!(&bytes[16..22], b"blk.10");
        for n in 0..bytes.len() {
            let e = Imatrix::read("x", &bytes[..n]).unwrap_err().to_string();
            assert!(e.starts_with("x: "), "{e}");
        }
        bytes.push(0);
        assert!(Imatrix::read("x", &bytes).is_err());
    }

    #[test]
    fn no_row_for_an_expert_of_zeros() {
        let e = ImatrixEntry::new(2, 2, vec![0.0, 0.0, 1.0, 0.0]).unwrap();
        assert_eq!(e.expert(0), None);
        assert_eq!(e.expert(1), Some([1.0, 0.0].as_slice()));
        assert_eq!(e.expert(2), None);
        assert!(ImatrixEntry::new(2, 2, vec![0.0]).is_none());
    }

    #[test]
    fn sizes_that_lie_are_refused_before_anything_is_taken() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.push(b'a');
        bytes.extend(u32::MAX.to_le_bytes());
        bytes.extend(u32::MAX.to_le_bytes());
        let e = Imatrix::read("x", &bytes).unwrap_err().to_string();
        assert!(e.contains("the values of 'a'"), "{e}");
    }
}
