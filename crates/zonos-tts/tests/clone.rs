//! Recording -> speaker encoder -> voice -> backbone -> codec, on tiny models.
//!
//! The tiny encoder makes 64 numbers and the demo backbone takes 2048, as the released ones do; the
//! two are paired by repeating the rows of the encoder's last layer, which repeats its vector.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use burn::tensor::Device;
use serde_json::{Value, json};
use tempfile::TempDir;
use zonos_audio::Waveform;
use zonos_audio::decode::{DecodeLimits, decode_file};
use zonos_audio::encode::{AudioFormat, PcmScale, encode_file};
use zonos_tts::{SpeakerEncoder, SpeechRequest, Tts, TtsBuilder, TtsError, Voice};

/// Numbers of the tiny encoder's vectors.
const NARROW: usize = 64;

/// Numbers that the demo backbone takes.
const WIDE: usize = 2048;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../validation/fixtures/ecapa/tiny")
        .join(name)
}

/// A copy of the tiny encoder whose vector is the original's, over and over.
fn widened(dir: &Path) {
    let mut config: Value =
        serde_json::from_slice(&fs::read(fixture("hf-f32/config.json")).unwrap()).unwrap();
    config["enc_dim"] = WIDE.into();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();

    let bytes = fs::read(fixture("hf-f32/model.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let (mut wide, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, info) in header.as_object().unwrap() {
        if name == "__metadata__" {
            continue;
        }
        let at = |i: usize| info["data_offsets"][i].as_u64().unwrap() as usize + start;
        let times = if name.starts_with("fc.") {
            WIDE / NARROW
        } else {
            1
        };
        let mut info = info.clone();
        let rows = info["shape"][0].as_u64().unwrap() as usize;
        info["shape"][0] = (rows * times).into();
        let begin = data.len();
        data.extend(bytes[at(0)..at(1)].repeat(times));
        info["data_offsets"] = json!([begin, data.len()]);
        wide.insert(name.clone(), info);
    }
    let text = Value::Object(wide).to_string();
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text.into_bytes());
    file.extend(data);
    fs::write(dir.join("model.safetensors"), file).unwrap();
}

/// The demo models with the widened encoder.
static TTS: LazyLock<Tts> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a temporary folder");
    widened(dir.path());
    // Values are mapped from the file, so the folder stays.
    let path = dir.keep();
    TtsBuilder::new(&Device::flex())
        .speaker_encoder(path)
        .demo()
        .expect("the demo model and the encoder load")
});

fn recording() -> Waveform {
    decode_file(fixture("speech16k.wav"), &DecodeLimits::default())
        .unwrap()
        .to_mono()
}

fn speak(voice: Option<&Voice>) -> zonos_tts::Speech {
    let request = SpeechRequest {
        voice: voice.map(Voice::speaker),
        seed: Some(11),
        max_frames: Some(24),
        ..SpeechRequest::new("Hello.")
    };
    TTS.speak(&request).unwrap()
}

/// The golden of the encoder itself, so that the voice that speaks is the one PyTorch hears.
fn golden() -> Vec<f32> {
    let checkpoint = zonos_checkpoint::Checkpoint::open(fixture("golden.safetensors")).unwrap();
    let data = checkpoint.tensor_data("speech16k.emb").unwrap();
    data.convert::<f32>().try_to_vec().unwrap()
}

#[test]
fn a_recording_becomes_the_voice_that_speaks() {
    let voice = TTS.clone_voice(&recording()).unwrap();
    assert_eq!(voice.dim(), WIDE);
    let golden = golden();
    let norm = golden.iter().map(|x| x * x).sum::<f32>().sqrt();
    for (i, x) in voice.vector().iter().enumerate() {
        let d = (x - golden[i % NARROW]).abs();
        assert!(d <= 5e-6 * norm, "number {i}: off by {d:e}");
    }
    let from = voice.provenance();
    assert_eq!(from.seconds, Some(recording().seconds()));
    assert!(from.model.is_some() && from.date.is_some() && from.library.is_some());

    let (with, without) = (speak(Some(&voice)), speak(None));
    // The voice's slot, its background marker and accurate mode.
    assert_eq!(with.prompt_rows, without.prompt_rows + 3);
    assert_ne!(with.codes, without.codes);

    // Kept and read again it is the same voice.
    let dir: TempDir = tempfile::tempdir().unwrap();
    for name in ["v.safetensors", "v.npy"] {
        let path = dir.path().join(name);
        voice.save(&path).unwrap();
        assert_eq!(speak(Some(&Voice::load(&path).unwrap())).codes, with.codes);
    }
}

#[test]
fn a_file_tells_where_the_voice_came_from() {
    let encoder = TTS.speaker_encoder().unwrap();
    let path = fixture("speech16k.wav");
    let (voice, warnings) = encoder.clone_file(&path).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    let from = voice.provenance();
    assert_eq!(from.source.as_deref(), Some("speech16k.wav"));
    // Of the file's bytes, as any other tool computes it.
    let hash = from.source_sha256.as_deref().unwrap();
    assert!(
        hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()),
        "{hash}"
    );
    assert_eq!(
        voice.vector(),
        TTS.clone_voice(&recording()).unwrap().vector()
    );
    // Two speakers' recordings are two voices.
    let (other, _) = encoder.clone_file(fixture("speech22k.wav")).unwrap();
    assert_ne!(other.vector(), voice.vector());
    assert_ne!(other.provenance().source_sha256, from.source_sha256);
}

#[test]
fn recordings_that_make_no_voice() {
    let refused = |samples: Vec<f32>| {
        let error = TTS
            .clone_voice(&Waveform::new(samples, 16_000))
            .unwrap_err();
        assert!(matches!(error, TtsError::Reference(_)), "{error}");
        assert!(error.is_request_error());
        error.to_string()
    };
    let talk = recording().into_samples();
    assert!(refused(vec![0.0; 80_000]).contains("silen"));
    assert!(refused(talk[..1_600].to_vec()).contains("0.3"));
    assert!(refused(Vec::new()).contains("0.3"));
    let mut broken = talk.clone();
    broken[8_000] = f32::NAN;
    assert!(refused(broken).contains("not numbers"));
    for level in [1e4, 1e19, 1e38] {
        let loud = talk.iter().map(|x| x * level).collect();
        assert!(refused(loud).contains("above full scale"));
    }
    // Quiet speech is speech.
    let quiet = talk.iter().map(|x| x * 0.01).collect();
    assert!(TTS.clone_voice(&Waveform::new(quiet, 16_000)).is_ok());

    let error = TTS
        .speaker_encoder()
        .unwrap()
        .clone_file(fixture("silence24k.wav"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("silence24k.wav") && error.contains("silen"),
        "{error}"
    );
}

/// Floats far beyond full scale are nobody's voice, and neither is what two channels leave of each other.
#[test]
fn files_are_named_with_what_is_wrong_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.wav");
    let talk = recording().into_samples();
    let refused = |channels: &[Vec<f32>]| {
        let (format, scale) = (AudioFormat::WavF32, PcmScale::Full);
        encode_file(&path, channels, 16_000, format, scale).unwrap();
        let encoder = TTS.speaker_encoder().unwrap();
        let error = encoder.clone_file(&path).unwrap_err();
        assert!(matches!(error, TtsError::Recording { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("odd.wav"), "{text}");
        text
    };
    let scaled = |by: f32| talk.iter().map(|x| x * by).collect::<Vec<_>>();
    let text = refused(&[scaled(3e38)]);
    assert!(text.contains("dB above full scale"), "{text}");
    assert!(refused(&[scaled(1e38), scaled(1e38)]).contains("above full scale"));
    let text = refused(&[talk.clone(), scaled(-1.0)]);
    assert!(
        text.contains("cancel") && text.contains("one of them"),
        "{text}"
    );
}

#[test]
fn encoders_that_do_not_fit() {
    let device = Device::flex();
    let narrow = fixture("hf-f32");
    let error = TtsBuilder::new(&device)
        .speaker_encoder(&narrow)
        .demo()
        .unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, TtsError::EncoderWidth { .. }), "{text}");
    for needle in ["hf-f32", "64 numbers", "takes 2048"] {
        assert!(text.contains(needle), "{needle}: {text}");
    }
    let encoder = SpeakerEncoder::load(&narrow, &device).unwrap();
    assert_eq!(encoder.dim(), NARROW);
    let plain = Tts::demo(&device).unwrap();
    let error = plain.clone_voice(&recording()).unwrap_err();
    assert!(matches!(error, TtsError::NoSpeakerEncoder), "{error}");
    assert!(plain.with_speaker_encoder(encoder).is_err());
    // Another model in the file.
    let codec = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../validation/fixtures/dac/tiny");
    assert!(SpeakerEncoder::load(codec, &device).is_err());
}
