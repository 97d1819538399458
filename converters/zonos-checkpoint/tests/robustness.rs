//! Damaged and random files: an error or a checkpoint whose tensors can be read, never a panic and
//! never memory out of proportion.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::*;
use proptest::prelude::*;
use zonos_checkpoint::{Checkpoint, convert, inspect};

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

fn sources() -> Vec<PathBuf> {
    let dir = std::env::temp_dir().join(format!("zonos-robustness-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let pack = dir.join("kinds.bpk");
    convert(&open(made("kinds.pth")), &pack).unwrap();
    let mut files: Vec<PathBuf> = [
        "kinds.pth",
        "kinds.legacy.pth",
        "kinds.tar.pth",
        "kinds.protocol4.pth",
        "kinds.safetensors",
        "h06.state_dict.pth",
        "module.pth",
    ]
    .into_iter()
    .map(made)
    .collect();
    files.push(pack);
    files
}

#[test]
fn every_prefix_of_every_container_is_handled() {
    let dir = tempfile::tempdir().unwrap();
    for source in sources() {
        let bytes = fs::read(&source).unwrap();
        let file = dir.path().join("x.pth");
        for end in 0..bytes.len() {
            fs::write(&file, &bytes[..end]).unwrap();
            exercise(&file);
        }
    }
}

#[test]
fn every_byte_of_every_header_may_be_wrong() {
    let dir = tempfile::tempdir().unwrap();
    for source in sources() {
        let bytes = fs::read(&source).unwrap();
        let file = dir.path().join("x.pth");
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut copy = bytes.clone();
                copy[at] ^= flip;
                fs::write(&file, &copy).unwrap();
                exercise(&file);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_bytes_behind_every_magic(
        magic in prop::sample::select(vec![
            &b""[..], b"PK\x03\x04", b"NRUB\x01\0", b"\x40\0\0\0\0\0\0\0{",
            b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", b"\x80\x02",
        ]),
        body in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.pth");
        fs::write(&file, [magic, &body].concat()).unwrap();
        exercise(&file);
    }

    #[test]
    fn several_wrong_bytes(
        which in 0usize..8,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let source = &sources()[which];
        let mut bytes = fs::read(source).unwrap();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.pth");
        fs::write(&file, bytes).unwrap();
        exercise(&file);
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
        let file = dir.path().join("x.pth");
        fs::write(&file, bytes).unwrap();
        exercise(&file);
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
