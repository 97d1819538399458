//! What each fuzz target does with its bytes: reads them, and checks what must hold of any result.
//!
//! Shared by the targets and by the test that replays the corpus.

use std::io::Write;
use std::path::{Component, Path};

use tempfile::NamedTempFile;
use zonos_audio::decode::{DecodeLimits, decode_bytes, probe_bytes};
use zonos_audio::{Codes, npy};
use zonos_checkpoint::{Checkpoint, NameMap};
use zonos_gguf::kld::KldBase;
use zonos_gguf::{Imatrix, manifest};
use zonos_tts::{Voice, VoiceName};

/// A target: its name, which is also its folder in the corpus, and its work.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All of them.
pub(crate) const ALL: [Target; 13] = [
    ("audio", audio),
    ("wav", wav),
    ("npy", npy_array),
    ("npz", npz),
    ("codes", codes),
    ("safetensors", checkpoint),
    ("torch", checkpoint),
    ("burnpack", checkpoint),
    ("gguf", checkpoint),
    ("quantising", quantising),
    ("name_map", name_map),
    ("voice_names", voice_names),
    ("voice_files", voice_files),
];

/// Bounds that make hostile files cheap.
const LIMITS: DecodeLimits = DecodeLimits {
    max_encoded_bytes: 1 << 20,
    max_seconds: 20.0,
    max_decoded_bytes: 8 << 20,
};

/// Lets panics inside the decoders' libraries pass: `zonos-audio` catches them, and makes them the
/// file's error. What it does not catch still ends the run, and so does a panic of our own.
pub(crate) fn spare_guarded_panics() {
    let other = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map_or("", |at| at.file());
        if !place.contains("/registry/src/") {
            other(info);
        }
    }));
}

/// Sound files of any kind, told by content.
pub(crate) fn audio(data: &[u8]) {
    let probed = probe_bytes("fuzz", data);
    match decode_bytes("fuzz", data, &LIMITS) {
        Ok(decoded) => {
            let info = &decoded.info;
            // What decodes can be probed, and the same is seen.
            let probed = probed.unwrap_or_else(|error| panic!("probe: {error}"));
            assert_eq!(
                (
                    probed.container,
                    probed.codec,
                    probed.sample_rate,
                    probed.channels
                ),
                (info.container, info.codec, info.sample_rate, info.channels)
            );
            assert_eq!(decoded.channels.len(), info.channels);
            let frames = decoded.channels[0].len();
            assert!(frames > 0);
            assert_eq!(info.frames, Some(frames as u64));
            assert!(decoded.channels.iter().all(|c| c.len() == frames));
            assert!(decoded.channels.iter().flatten().all(|x| x.is_finite()));
            assert!(frames as f64 <= LIMITS.max_seconds * f64::from(info.sample_rate));
            assert!((frames * info.channels * 4) as u64 <= LIMITS.max_decoded_bytes);
            assert_eq!(decoded.to_mono().len(), frames);
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("fuzz: ") && !text.contains('\n'), "{text}");
        }
    }
}

/// The chunks of a WAV file.
pub(crate) fn wav(data: &[u8]) {
    let mut file = b"RIFF\0\0\0\0WAVE".to_vec();
    file.extend(data);
    audio(&file);
}

/// `.npy` arrays, and the fields of structured ones.
pub(crate) fn npy_array(data: &[u8]) {
    if let Ok(array) = npy::from_bytes("fuzz.npy", data) {
        let count: usize = array.shape().iter().product();
        assert_eq!(count, array.len());
        assert_eq!(count, array.to_f32().len());
        assert!(count <= data.len());
        // Whole numbers or an error, and nothing else.
        let _ = array.to_i64();
        let _ = array.to_i32();
    }
    let _ = npy::field_from_bytes("fuzz.npy", data, "embedding");
}

/// Speaker vectors, in `.npz` archives.
pub(crate) fn npz(data: &[u8]) {
    voice(data, ".npz");
}

/// Stored voices: a vector with its provenance.
pub(crate) fn voice_files(data: &[u8]) {
    voice(data, ".safetensors");
}

fn voice(data: &[u8], ending: &str) {
    let file = file(data, ending);
    if let Ok(voice) = Voice::import(file.path()) {
        assert_eq!(voice.vector().len(), voice.dim());
        assert!(voice.vector().iter().all(|x| x.is_finite()));
    }
}

/// Codec codes in `.npy` files.
pub(crate) fn codes(data: &[u8]) {
    let file = file(data, ".npy");
    if let Ok(codes) = Codes::load_npy(file.path()) {
        assert_eq!(codes.values().len(), codes.frames() * codes.codebooks());
        let sheared = codes.shear(-1);
        assert_eq!(sheared.frames(), codes.frames());
        let _ = sheared.unshear(-1);
        let _ = codes.clone().truncate(codes.frames() / 2);
    }
}

/// Checkpoints of every format, told by content, with their values.
pub(crate) fn checkpoint(data: &[u8]) {
    let file = file(data, "");
    let Ok(checkpoint) = Checkpoint::open(file.path()) else {
        return;
    };
    let _ = checkpoint.model_kind();
    for name in checkpoint.names().take(64) {
        let info = checkpoint.info(name).expect("listed tensors are described");
        let elements: usize = info.shape.iter().product();
        // Tensors may share bytes, so that a small file can hold many large ones.
        if elements > 1 << 20 {
            continue;
        }
        if let Ok(values) = checkpoint.tensor_data(name) {
            assert_eq!(values.num_elements(), elements);
        }
    }
}

/// The files around a quantised model: importances, base files, manifests.
pub(crate) fn quantising(data: &[u8]) {
    if let Ok(imatrix) = Imatrix::read("fuzz", data) {
        for entry in imatrix.entries.values() {
            assert_eq!(entry.values().len(), entry.experts() * entry.inputs());
        }
    }
    if let Ok(base) = KldBase::read("fuzz", data) {
        let vocabulary = base.shape().vocabulary;
        for event in 0..base.events().len().min(16) {
            let row = base.log_probabilities(event);
            assert!(row.is_some_and(|row| row.len() == vocabulary as usize));
        }
    }
    if let Ok(text) = std::str::from_utf8(data) {
        for name in ["fuzz.toml", "fuzz.txt"] {
            let _ = manifest::parse(Path::new(name), text);
        }
    }
}

/// Name maps, in both of their languages, and names that go through them.
pub(crate) fn name_map(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for map in [NameMap::from_toml(text), NameMap::from_json(text)]
        .into_iter()
        .flatten()
    {
        if map.check().is_ok() {
            for name in ["", "a", "layers.0.weight", "module.x.1.y.2", text] {
                let _ = map.renamed(name);
            }
        }
    }
}

/// Names of voices: what is accepted is a plain file name on every system.
pub(crate) fn voice_names(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(name) = VoiceName::new(text) else {
        return;
    };
    assert_eq!(name.as_str(), text);
    assert!((1..=64).contains(&text.len()) && text.is_ascii());
    assert!(text.starts_with(|c: char| c.is_ascii_alphanumeric()));
    assert!(
        text.chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    );
    assert!(!text.ends_with('.'));
    let parts: Vec<Component<'_>> = Path::new(text).components().collect();
    assert!(matches!(parts.as_slice(), [Component::Normal(only)] if **only == *text));
    let stem = text.split('.').next().unwrap_or("").to_ascii_uppercase();
    assert!(!["CON", "PRN", "AUX", "NUL", "COM1", "LPT9"].contains(&stem.as_str()));
}

/// The bytes as a file. In memory where the system has such a place.
fn file(data: &[u8], ending: &str) -> NamedTempFile {
    let memory = Path::new("/dev/shm");
    let mut builder = tempfile::Builder::new();
    builder.suffix(ending);
    let file = if memory.is_dir() {
        builder.tempfile_in(memory)
    } else {
        builder.tempfile()
    };
    let mut file = file.expect("a temporary file can be made");
    file.write_all(data)
        .expect("a temporary file can be written");
    file
}
