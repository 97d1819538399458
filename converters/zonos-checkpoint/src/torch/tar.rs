//! The tar container of the first PyTorch releases: `storages` (a count, then key, location and
//! class, an `i64` element count and the elements; last a list of views), `tensors` (a count, then
//! key, storage key and class, an `i32` rank and 4 unused bytes, sizes, strides and offset) and
//! `pickle` (the object, whose persistent ids name tensors).

use std::collections::HashMap;
use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;

use super::pickle::{Id, Value};
use super::{Container, MAX_PICKLE, Pickle, TarTensor, storage_width};
use crate::CheckpointError;
use crate::mapped::MappedFile;
use crate::tensor::MAX_RANK;

pub(super) fn read(map: &Arc<MappedFile>) -> Result<Container, CheckpointError> {
    let path = map.path();
    let mut members: HashMap<String, Range<usize>> = HashMap::new();
    let mut archive = ::tar::Archive::new(Cursor::new(map.bytes()));
    let damaged = |e: std::io::Error| CheckpointError::malformed(path, format!("tar archive: {e}"));
    for entry in archive.entries_with_seek().map_err(damaged)? {
        let entry = entry.map_err(damaged)?;
        let name = String::from_utf8_lossy(&entry.path_bytes())
            .trim_start_matches("./")
            .to_string();
        let start = usize::try_from(entry.raw_file_position()).unwrap_or(usize::MAX);
        let size = usize::try_from(entry.size()).unwrap_or(usize::MAX);
        let end = start.saturating_add(size);
        if end > map.len() {
            return Err(CheckpointError::Truncated {
                path: path.into(),
                expected: end as u64,
                have: map.len() as u64,
            });
        }
        members.insert(name, start..end);
    }
    let member = |name: &str| {
        members.get(name).cloned().ok_or_else(|| {
            CheckpointError::unsupported(
                path,
                format!("a tar archive without '{name}', so not written by torch.save; unpack it if it holds the checkpoint"),
            )
        })
    };
    let reason = |e: String| CheckpointError::malformed(path, e);

    let mut cursor = Reader::new(map, member("storages")?, "storages");
    let storages = read_storages(&mut cursor).map_err(reason)?;
    let mut cursor = Reader::new(map, member("tensors")?, "tensors");
    let tensors = read_tensors(&mut cursor, &storages).map_err(reason)?;
    let object = member("pickle")?;
    let pickle = Reader::new(map, object, "pickle")
        .pickle()
        .map_err(reason)?;
    Ok(Container {
        pickle,
        storages: HashMap::new(),
        tensors,
    })
}

/// Byte range in the file and class of a storage.
type Storages = HashMap<String, (Range<usize>, String)>;

fn read_storages(r: &mut Reader<'_>) -> Result<Storages, String> {
    let mut storages = Storages::new();
    for _ in 0..r.count()? {
        let [key, _, class] = r.fields()?;
        let width = storage_width(&class).ok_or_else(|| format!("storage class '{class}'"))?;
        let count = r.size()?;
        let bytes = count.checked_mul(width).ok_or("a storage size overflows")?;
        let range = r.skip(bytes)?;
        storages.insert(key, (range, class));
    }
    // Views of storages: (view key, storage key, offset, count) in elements.
    let views = r.pickle()?;
    if let Value::List(list) = views.get(views.root) {
        for &view in list {
            let Value::Tuple(items) = views.get(view) else {
                return Err("a storage view that is not a tuple".into());
            };
            let [target, root, offset, count] = items[..] else {
                return Err("a storage view that does not have four fields".into());
            };
            let text = |id: Id| views.text(id).ok_or("a storage view without a key");
            let size = |id: Id| views.size(id).ok_or("a storage view without a size");
            let (range, class) = storages
                .get(&*text(root)?)
                .cloned()
                .ok_or("a view of an unknown storage")?;
            let width = storage_width(&class).unwrap_or(1);
            let start = size(offset)?
                .checked_mul(width)
                .and_then(|n| n.checked_add(range.start));
            let end = start.and_then(|s| s.checked_add(size(count).ok()?.checked_mul(width)?));
            match (start, end) {
                (Some(start), Some(end)) if end <= range.end => {
                    storages.insert(text(target)?.to_string(), (start..end, class));
                }
                _ => return Err("a storage view beyond its storage".into()),
            }
        }
    }
    Ok(storages)
}

fn read_tensors(
    r: &mut Reader<'_>,
    storages: &Storages,
) -> Result<HashMap<String, TarTensor>, String> {
    let mut tensors = HashMap::new();
    for _ in 0..r.count()? {
        let [key, storage, _class] = r.fields()?;
        let rank = i32::from_le_bytes(r.array()?);
        r.skip(4)?;
        let rank = usize::try_from(rank)
            .ok()
            .filter(|&n| n <= MAX_RANK)
            .ok_or_else(|| format!("tensor '{key}' has rank {rank}"))?;
        let shape = (0..rank).map(|_| r.size()).collect::<Result<_, _>>()?;
        let strides = (0..rank).map(|_| r.size()).collect::<Result<_, _>>()?;
        let first = r.size()?;
        let (range, class) = storages
            .get(&storage)
            .cloned()
            .ok_or_else(|| format!("tensor '{key}' uses unknown storage '{storage}'"))?;
        tensors.insert(
            key,
            TarTensor {
                storage: range,
                class,
                first,
                shape,
                strides,
            },
        );
    }
    Ok(tensors)
}

/// Reads pickles and binary fields of one archive member, at absolute file offsets.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
    member: &'static str,
}

impl<'a> Reader<'a> {
    fn new(map: &'a MappedFile, range: Range<usize>, member: &'static str) -> Self {
        Self {
            bytes: map.bytes(),
            at: range.start,
            end: range.end,
            member,
        }
    }

    fn pickle(&mut self) -> Result<Pickle, String> {
        let rest = &self.bytes[self.at..self.end];
        let pickle = Pickle::parse(&rest[..rest.len().min(MAX_PICKLE)])
            .map_err(|e| format!("{}: {e}", self.member))?;
        self.at += pickle.consumed;
        Ok(pickle)
    }

    fn count(&mut self) -> Result<usize, String> {
        let pickle = self.pickle()?;
        pickle
            .size(pickle.root)
            .ok_or_else(|| format!("{}: its count is not a count", self.member))
    }

    /// Three strings; a class is given by its bare name.
    fn fields(&mut self) -> Result<[String; 3], String> {
        let pickle = self.pickle()?;
        let text = |id: Id| match pickle.get(id) {
            Value::Global { name, .. } => Some(name.to_string()),
            _ => pickle.text(id).map(|s| s.to_string()),
        };
        match pickle.get(pickle.root) {
            Value::Tuple(items) if items.len() == 3 => {
                match (text(items[0]), text(items[1]), text(items[2])) {
                    (Some(a), Some(b), Some(c)) => Ok([a, b, c]),
                    _ => Err(format!("{}: an entry without names", self.member)),
                }
            }
            _ => Err(format!("{}: an entry without three fields", self.member)),
        }
    }

    fn skip(&mut self, n: usize) -> Result<Range<usize>, String> {
        let end = self.at.checked_add(n).filter(|&e| e <= self.end);
        let end = end.ok_or_else(|| format!("{}: ends in the middle of an entry", self.member))?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let range = self.skip(N)?;
        self.bytes[range]
            .try_into()
            .map_err(|_| format!("{}: ends in the middle of an entry", self.member))
    }

    fn size(&mut self) -> Result<usize, String> {
        let value = i64::from_le_bytes(self.array()?);
        usize::try_from(value).map_err(|_| format!("{}: a negative size {value}", self.member))
    }
}
