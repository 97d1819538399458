//! Damaged and random files: an error or a checkpoint whose tensors can be read, never a panic and
//! never memory out of proportion.

mod common;

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use proptest::prelude::*;
use zonos_checkpoint::{Checkpoint, convert, inspect};

/// Writes a file of its own (writing over an old one can wait for the disk) and exercises it.
fn exercise_bytes(dir: &Path, bytes: &[u8]) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let file = dir.join(format!("{}.pth", COUNT.fetch_add(1, Ordering::Relaxed)));
    fs::write(&file, bytes).unwrap();
    exercise(&file);
    fs::remove_file(&file).unwrap();
}

/// The most memory this process has had, in bytes (Linux).
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Opens and reads everything.
fn exercise(path: &Path) {
    let Ok(checkpoint) = Checkpoint::open(path) else {
        return;
    };
    let size = fs::metadata(path).unwrap().len();
    for name in checkpoint.names() {
        let info = checkpoint.info(name).unwrap();
        assert!(
            info.bytes <= size.max(1 << 30),
            "{name} of {} bytes in a file of {size}",
            info.bytes
        );
        // A broadcast view may be larger than its file; a damaged small file is not worth a gigabyte.
        if info.bytes <= 64 << 20 {
            let _ = checkpoint.tensor_data(name);
        }
    }
    let _ = checkpoint.metadata().to_string();
    let _ = inspect(&checkpoint, false).unwrap().to_string();
}

/// One file of every container, as bytes.
fn sources() -> &'static [Vec<u8>] {
    static SOURCES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    SOURCES.get_or_init(read_sources)
}

fn read_sources() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let pack = dir.path().join("kinds.bpk");
    convert(&open(made("kinds.pth")), &pack).unwrap();
    let mut files: Vec<Vec<u8>> = [
        "kinds.pth",
        "kinds.legacy.pth",
        "kinds.tar.pth",
        "kinds.protocol4.pth",
        "kinds.safetensors",
        "h06.state_dict.pth",
        "module.pth",
    ]
    .into_iter()
    .map(|name| fs::read(made(name)).unwrap())
    .collect();
    files.push(fs::read(pack).unwrap());
    files
}

#[test]
fn prefixes_of_every_container_are_handled() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in sources() {
        // Every cut near both ends, where the headers are, and a sample between.
        let len = bytes.len();
        for end in (0..len).filter(|e| *e < 400 || *e + 700 > len || e % 11 == 0) {
            exercise_bytes(dir.path(), &bytes[..end]);
        }
    }
}

#[test]
fn wrong_bytes_in_every_container_are_handled() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in sources() {
        for at in (0..bytes.len()).step_by(2) {
            let mut copy = bytes.clone();
            copy[at] ^= [0x01, 0x80, 0xff][at % 3];
            exercise_bytes(dir.path(), &copy);
            // All files together are under 100 KB; broadcast views may add what `exercise` allows.
            assert!(
                peak_memory() < 512 << 20,
                "byte {at}: {} bytes of memory",
                peak_memory()
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_bytes_behind_every_magic(
        magic in prop::sample::select(vec![
            &b""[..], b"PK\x03\x04", b"NRUB\x01\0", b"\x40\0\0\0\0\0\0\0{",
            b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", b"\x80\x02",
        ]),
        body in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let dir = tempfile::tempdir().unwrap();
        exercise_bytes(dir.path(), &[magic, &body].concat());
    }

    #[test]
    fn several_wrong_bytes(
        which in 0usize..8,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut bytes = sources()[which].clone();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let dir = tempfile::tempdir().unwrap();
        exercise_bytes(dir.path(), &bytes);
    }

    /// A legacy stream whose object pickle is a soup of valid opcodes.
    #[test]
    fn pickle_opcode_soup(ops in prop::collection::vec(prop::sample::select(vec![
        &b"("[..], b".", b"0", b"1", b"2", b"N", b"\x88", b"K\x05", b"K\x00", b"}", b"]", b")", b"u", b"s", b"a", b"e",
        b"t", b"\x85", b"\x86", b"\x87", b"R", b"b", b"Q", b"\x81", b"q\x00", b"q\x01", b"h\x00", b"h\x01", b"\x94",
        b"X\x07\0\0\0storage", b"X\x01\0\0\x000", b"X\x05\0\0\0model", b"\x8f", b"\x90", b"d", b"l", b"o",
        b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n", b"ctorch\nFloatStorage\n",
        b"c_codecs\nencode\n", b"cbuiltins\nset\n", b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    ]), 0..120)) {
        let mut bytes = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.".to_vec();
        bytes.extend(ops.concat());
        bytes.extend(b".\x80\x02].");
        let dir = tempfile::tempdir().unwrap();
        exercise_bytes(dir.path(), &bytes);
    }
}

/// A pickle that references itself, one that doubles with every level, one with a huge stride-0 view.
#[test]
fn hostile_pickles_stay_small() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, object: &[u8]| {
        let mut bytes = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.".to_vec();
        bytes.extend(object);
        // one storage "0" of 4 floats
        bytes.extend(b"\x80\x02]X\x01\0\0\x000a.");
        bytes.extend(4i64.to_le_bytes());
        bytes.extend([0u8; 16]);
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let tensor = |size: &[u8], stride: &[u8]| {
        let mut t = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQK\x00".to_vec();
        t.extend(size);
        t.extend(stride);
        t.extend(b"\x89NtR");
        t
    };
    let dict = |value: &[u8]| [&b"\x80\x02}X\x01\0\0\0w"[..], value, b"s."].concat();

    let good = write(
        "good.pth",
        &dict(&tensor(b"K\x02K\x02\x86", b"K\x02K\x01\x86")),
    );
    assert_eq!(open(&good).info("w").unwrap().shape, [2, 2]);

    // 2^40 copies of one float
    let huge = write(
        "huge.pth",
        &dict(&tensor(b"\x8a\x06\0\0\0\0\0\x01\x85", b"K\x00\x85")),
    );
    assert!(error(&huge).contains("broadcast"));
    let negative = write(
        "negative.pth",
        &dict(&tensor(b"J\xff\xff\xff\xff\x85", b"K\x01\x85")),
    );
    assert!(error(&negative).contains("negative"));
    let outside = write("outside.pth", &dict(&tensor(b"K\x05\x85", b"K\x01\x85")));
    assert!(error(&outside).contains("needs 20 bytes, its storage has 16"));

    // d = {}; d["d"] = d, beside a tensor
    let weight = tensor(b"K\x04\x85", b"K\x01\x85");
    let cycle = [
        &b"\x80\x02}q\x00X\x01\0\0\0dh\x00sX\x01\0\0\0w"[..],
        &weight,
        b"s.",
    ]
    .concat();
    assert!(error(write("cycle.pth", &cycle)).contains("nested too deeply"));

    // a0 = [w]; a(n+1) = [an, an]: 2^60 paths to one tensor
    let mut bomb = b"\x80\x02}X\x01\0\0\0w]".to_vec();
    bomb.extend(&weight);
    bomb.push(b'a');
    for level in 0..60u8 {
        bomb.extend([
            b'q', level, b'0', b']', b'(', b'h', level, b'h', level, b'e',
        ]);
    }
    bomb.extend(b"s.");
    let text = error(write("bomb.pth", &bomb));
    assert!(text.contains("nested too deeply or too often"), "{text}");
}
