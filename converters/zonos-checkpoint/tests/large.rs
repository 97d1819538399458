//! A checkpoint of the released model's size, in sparse files: opening reads headers only.

mod common;

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

use common::*;
use zonos_checkpoint::{
    Checkpoint, Format, LoadOptions, Loader, ModelKind, NameMap, TensorSpec, inspect, plan,
};

/// Names and shapes of the released 28-layer backbone.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut all = Vec::new();
    let mut add = |name: String, shape: &[usize]| all.push((name, shape.to_vec()));
    for i in 0..10 {
        let rows = if i == 9 { 520 } else { 1026 };
        add(
            format!("multi_embedder.embedders.{i}.weight"),
            &[rows, 2048],
        );
    }
    add("speaker_lda_projection.weight".into(), &[1024, 2048]);
    add("speaker_lda_projection.bias".into(), &[1024]);
    add("speaker_projection.weight".into(), &[2048, 1024]);
    add("speaker_projection.bias".into(), &[2048]);
    for n in 0..28 {
        let l = format!("layers.{n}");
        add(format!("{l}.attention.wq.weight"), &[2048, 2048]);
        add(format!("{l}.attention.wkv.weight"), &[2, 512, 2048]);
        add(format!("{l}.attention.wo.weight"), &[2048, 2048]);
        add(format!("{l}.attention.temp"), &[1, 16, 1]);
        add(format!("{l}.attention.gater.weight"), &[16, 2048]);
        add(format!("{l}.attention_norm.weight"), &[2048]);
        add(format!("{l}.ffn_norm.weight"), &[2048]);
        let f = format!("{l}.feed_forward");
        if (3..27).contains(&n) {
            add(format!("{f}.experts.w13"), &[16, 6144, 2048]);
            add(format!("{f}.experts.w2"), &[16, 2048, 3072]);
            add(format!("{f}.router.down_proj.weight"), &[128, 2048]);
            add(format!("{f}.router.down_proj.bias"), &[128]);
            add(format!("{f}.router.rmsnorm_eda.weight"), &[128]);
            for i in [0, 2] {
                add(format!("{f}.router.router_mlp.{i}.weight"), &[128, 128]);
                add(format!("{f}.router.router_mlp.{i}.bias"), &[128]);
            }
            add(format!("{f}.router.router_mlp.4.weight"), &[16, 128]);
            add(format!("{f}.router.balancing_biases"), &[16]);
            if n > 3 {
                add(format!("{f}.router.router_states_scale"), &[128]);
            }
        } else {
            add(format!("{f}.w_in.weight"), &[2, 3072, 2048]);
            add(format!("{f}.w_out.weight"), &[2048, 3072]);
        }
    }
    add("out_norm.weight".into(), &[2048]);
    add("multi_output.weight".into(), &[9234, 2048]);
    all
}

fn bytes(shape: &[usize]) -> u64 {
    2 * shape.iter().product::<usize>() as u64
}

fn sparse_safetensors(path: &Path) {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, shape) in tensors() {
        let end = at + bytes(&shape);
        header.insert(
            name,
            serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}),
        );
        at = end;
    }
    let mut text = serde_json::Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = File::create(path).unwrap();
    file.write_all(&(text.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&text).unwrap();
    file.set_len(8 + text.len() as u64 + at).unwrap();
}

/// A torch archive: local headers, holes instead of data, a zip64 directory.
fn sparse_pth(path: &Path) {
    let text = |s: &str| [&b"X"[..], &(s.len() as u32).to_le_bytes(), s.as_bytes()].concat();
    let int = |v: usize| [&b"\x8a\x08"[..], &(v as u64).to_le_bytes()].concat();
    let ints = |list: &[usize]| {
        let body: Vec<u8> = list.iter().flat_map(|&v| int(v)).collect();
        [&b"("[..], &body, b"t"].concat()
    };
    let mut pickle = b"\x80\x02}".to_vec();
    pickle.extend(text("model"));
    pickle.extend(b"}(");
    for (i, (name, shape)) in tensors().iter().enumerate() {
        let mut strides = vec![1; shape.len()];
        for axis in (0..shape.len() - 1).rev() {
            strides[axis] = strides[axis + 1] * shape[axis + 1];
        }
        pickle.extend(text(name));
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        pickle.extend(text("storage"));
        pickle.extend(b"ctorch\nBFloat16Storage\n");
        pickle.extend(text(&i.to_string()));
        pickle.extend(text("cuda:0"));
        pickle.extend(int(shape.iter().product()));
        pickle.extend(b"tQK\x00");
        pickle.extend(ints(shape));
        pickle.extend(ints(&strides));
        pickle.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    }
    pickle.extend(b"us.");

    let mut file = File::create(path).unwrap();
    let mut directory = Vec::new();
    let mut entries = vec![("model/data.pkl".to_string(), pickle.len() as u64)];
    entries.extend(
        tensors()
            .iter()
            .enumerate()
            .map(|(i, (_, shape))| (format!("model/data/{i}"), bytes(shape))),
    );
    let count = entries.len() as u64;
    for (name, size) in entries {
        let offset = file.stream_position().unwrap();
        let size32 = u32::try_from(size).unwrap().to_le_bytes();
        let name_len = (name.len() as u16).to_le_bytes();
        // As torch does, extra bytes align the data to 64.
        let pad = (64 - (offset + 30 + name.len() as u64 + 4) % 64) as u16 % 64;
        let mut local = b"PK\x03\x04\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        local.extend([size32, size32].concat());
        local.extend(name_len);
        local.extend((pad + 4).to_le_bytes());
        local.extend(name.as_bytes());
        local.extend(b"FB");
        local.extend(pad.to_le_bytes());
        local.extend(vec![0; pad as usize]);
        file.write_all(&local).unwrap();
        if name.ends_with(".pkl") {
            file.write_all(&pickle).unwrap();
        } else {
            file.seek(SeekFrom::Current(size as i64)).unwrap();
        }
        directory.extend(b"PK\x01\x02\x2d\0\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0");
        directory.extend([size32, size32].concat());
        directory.extend(name_len);
        directory.extend(12u16.to_le_bytes());
        directory.extend([0; 10]);
        directory.extend(u32::MAX.to_le_bytes());
        directory.extend(name.as_bytes());
        directory.extend(b"\x01\0\x08\0");
        directory.extend(offset.to_le_bytes());
    }
    let start = file.stream_position().unwrap();
    file.write_all(&directory).unwrap();
    let end = file.stream_position().unwrap();
    let mut tail = b"PK\x06\x06".to_vec();
    tail.extend(44u64.to_le_bytes());
    tail.extend(b"\x2d\0\x2d\0\0\0\0\0\0\0\0\0");
    tail.extend(count.to_le_bytes());
    tail.extend(count.to_le_bytes());
    tail.extend((directory.len() as u64).to_le_bytes());
    tail.extend(start.to_le_bytes());
    tail.extend(b"PK\x06\x07\0\0\0\0");
    tail.extend(end.to_le_bytes());
    tail.extend(1u32.to_le_bytes());
    tail.extend(b"PK\x05\x06\0\0\0\0");
    tail.extend([0xff; 12]);
    tail.extend(0u16.to_le_bytes());
    file.write_all(&tail).unwrap();
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return 0;
    };
    status
        .lines()
        .find_map(|l| {
            l.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .unwrap_or(0)
        * 1024
}

#[test]
fn fifteen_gigabytes_open_in_a_moment() {
    let dir = tempfile::tempdir().unwrap();
    let specs: Vec<TensorSpec> = tensors()
        .into_iter()
        .map(|(name, shape)| TensorSpec::plain(name, shape))
        .collect();
    assert_eq!(specs.len(), 507);
    let safetensors = dir.path().join("model.safetensors");
    sparse_safetensors(&safetensors);
    let pth = dir.path().join("model.pth");
    sparse_pth(&pth);
    for (path, format) in [(safetensors, Format::Safetensors), (pth, Format::TorchZip)] {
        let before = resident();
        let clock = Instant::now();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let found = inspect(&checkpoint, false).unwrap();
        let report = plan(&checkpoint, &NameMap::new(), &specs).unwrap();
        let took = clock.elapsed();
        let grown = resident().saturating_sub(before);
        assert_eq!(found.format, format);
        assert_eq!(found.model, ModelKind::Zonos2);
        assert_eq!(found.bytes, 15_336_236_416);
        assert_eq!(found.values, 7_668_118_208);
        assert!(report.is_clean(), "{report}");
        assert!(took.as_secs_f64() < 1.0, "{took:?}");
        assert!(grown < 100 << 20, "{grown} bytes of memory");

        // A single large tensor is a view: holes are not read until they are looked at.
        let loader = Loader::new(
            &checkpoint,
            &NameMap::new(),
            &specs,
            &LoadOptions::default(),
            &device(),
        )
        .unwrap();
        assert!(
            loader
                .report()
                .notes
                .iter()
                .any(|n| n.contains("not searched for NaN"))
        );
        let name = "layers.26.feed_forward.experts.w13";
        let data = loader.data(name).unwrap();
        assert_eq!(data.bytes().len() as u64, 402_653_184);
        let expert = loader.data_rows(name, 15..16).unwrap();
        assert_eq!(expert.shape().as_slice(), [1, 6144, 2048]);
        let tensor = loader.tensor::<3>(name).unwrap();
        assert_eq!(tensor.dims(), [16, 6144, 2048]);
        let grown = resident().saturating_sub(before);
        assert!(
            grown < 100 << 20,
            "{grown} bytes of memory with a 400 MB tensor"
        );
    }
}
