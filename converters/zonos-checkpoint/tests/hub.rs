//! The hub's cache and protocol, against a server of a few dozen lines on this machine.

mod common;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::*;
use sha2::{Digest, Sha256};
use zonos_checkpoint::hub::Hub;
use zonos_checkpoint::{Checkpoint, CheckpointError, OpenOptions};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Normal,
    /// Closes the connection in the middle of the first body of a large file.
    CutOnce,
    /// Closes every body of a large file after a few bytes.
    AlwaysCut,
    /// Sends whole files whatever range is asked for.
    NoRanges,
    /// Serves other bytes than announced.
    Damaged,
}

struct Repo {
    files: HashMap<String, Vec<u8>>,
    mode: Mode,
    token: Option<String>,
    cuts: usize,
    /// The other server.
    storage: String,
    log: Vec<String>,
}

/// A hub: files over 1000 bytes answer with a redirect to another server and are named by their
/// SHA-256, as large files are.
struct Server {
    url: String,
    repo: Arc<Mutex<Repo>>,
}

impl Server {
    fn start(files: &[(&str, Vec<u8>)], mode: Mode) -> Self {
        let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let [url, storage] =
            [0, 1].map(|i| format!("http://{}", listeners[i].local_addr().unwrap()));
        let repo = Arc::new(Mutex::new(Repo {
            files: files
                .iter()
                .map(|(n, b)| ((*n).to_string(), b.clone()))
                .collect(),
            mode,
            token: None,
            cuts: 0,
            storage,
            log: Vec::new(),
        }));
        for listener in listeners {
            let shared = repo.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let repo = shared.clone();
                    std::thread::spawn(move || {
                        let _ = serve(stream, &repo);
                    });
                }
            });
        }
        Self { url, repo }
    }

    fn log(&self) -> Vec<String> {
        self.repo.lock().unwrap().log.clone()
    }
}

fn serve(mut stream: TcpStream, repo: &Mutex<Repo>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut parts = line.split_whitespace();
    let method = parts.next().unwrap_or_default().to_string();
    let path = parts.next().unwrap_or_default().to_string();
    let mut headers = HashMap::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        match header.trim().split_once(':') {
            Some((k, v)) => headers.insert(k.trim().to_lowercase(), v.trim().to_string()),
            None => break,
        };
    }
    let (status, extra, body, cut) = {
        let mut repo = repo.lock().unwrap();
        let range = headers.get("range").cloned().unwrap_or_default();
        repo.log
            .push(format!("{method} {path} {range}").trim().to_string());
        answer(&mut repo, &path, &headers)
    };
    let mut text = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{extra}");
    if !extra.to_lowercase().contains("content-length") {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    stream.write_all(text.as_bytes())?;
    stream.write_all(b"\r\n")?;
    if method != "HEAD" {
        stream.write_all(&body[..body.len().min(cut)])?;
    }
    stream.flush()
}

fn answer(
    repo: &mut Repo,
    path: &str,
    headers: &HashMap<String, String>,
) -> (String, String, Vec<u8>, usize) {
    let plain = |status: &str, body: &str| {
        (
            status.to_string(),
            String::new(),
            body.as_bytes().to_vec(),
            usize::MAX,
        )
    };
    if path.starts_with("/cdn/") {
        assert!(
            !headers.contains_key("authorization"),
            "the token left the hub"
        );
    } else if let Some(token) = &repo.token
        && headers.get("authorization") != Some(&format!("Bearer {token}"))
    {
        return plain("401 Unauthorized", "no");
    }
    if path.starts_with("/api/models/a/b/revision/") {
        if !path.ends_with("/main") && !path.ends_with(COMMIT) {
            return plain("404 Not Found", "{}");
        }
        let mut names: Vec<&String> = repo.files.keys().collect();
        names.sort();
        let siblings: Vec<_> = names
            .iter()
            .map(|n| serde_json::json!({ "rfilename": n }))
            .collect();
        let json = serde_json::json!({ "sha": COMMIT, "siblings": siblings });
        return plain("200 OK", &json.to_string());
    }
    let cdn = path.strip_prefix("/cdn/");
    let Some(name) = cdn.or_else(|| path.strip_prefix(&format!("/a/b/resolve/{COMMIT}/"))) else {
        return plain("404 Not Found", "no such thing");
    };
    let Some(bytes) = repo.files.get(name).cloned() else {
        return plain("404 Not Found", "no such file");
    };
    let large = bytes.len() > 1000;
    let hash: String = Sha256::digest(&bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    if large && cdn.is_none() {
        let head = format!(
            "Location: {}/cdn/{name}\r\nX-Linked-ETag: \"{hash}\"\r\nX-Linked-Size: {}\r\nX-Repo-Commit: {COMMIT}\r\n",
            repo.storage,
            bytes.len()
        );
        return ("302 Found".into(), head, Vec::new(), usize::MAX);
    }
    let etag = format!("ETag: \"{}\"\r\nX-Repo-Commit: {COMMIT}\r\n", &hash[..40]);
    let mut bytes = bytes;
    if repo.mode == Mode::Damaged && large {
        bytes[500] ^= 1;
    }
    let cut = match repo.mode {
        Mode::CutOnce if large && repo.cuts == 0 => {
            repo.cuts += 1;
            700
        }
        Mode::AlwaysCut if large => 0,
        _ => usize::MAX,
    };
    let from = headers
        .get("range")
        .and_then(|r| {
            r.strip_prefix("bytes=")?
                .strip_suffix('-')?
                .parse::<usize>()
                .ok()
        })
        .filter(|_| repo.mode != Mode::NoRanges);
    match from {
        Some(from) if from >= bytes.len() => (
            "416 Range Not Satisfiable".into(),
            String::new(),
            Vec::new(),
            cut,
        ),
        Some(from) => {
            let total = bytes.len();
            let head = format!(
                "{etag}Content-Range: bytes {from}-{}/{total}\r\n",
                total - 1
            );
            (
                "206 Partial Content".into(),
                head,
                bytes[from..].to_vec(),
                cut,
            )
        }
        None => ("200 OK".into(), etag, bytes, cut),
    }
}

fn model() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("params.json", b"{\"dim\": 3}".to_vec()),
        ("README.md", b"hello".to_vec()),
        ("model.pth", fs::read(made("kinds.pth")).unwrap()),
        ("other.safetensors", vec![0; 5000]),
    ]
}

fn open_with(hub: &Hub, reference: &str) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::open_with(
        reference,
        &OpenOptions {
            hub: Some(hub.clone()),
            ..OpenOptions::default()
        },
    )
}

fn failure(hub: &Hub, reference: &str) -> String {
    let text = open_with(hub, reference)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

fn snapshot(cache: &Path) -> PathBuf {
    cache.join("models--a--b/snapshots").join(COMMIT)
}

#[test]
fn a_fresh_download_fills_the_cache_and_the_next_one_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&model(), Mode::Normal);
    server.repo.lock().unwrap().token = Some("secret".into());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    let hub = Hub::new(dir.path(), &server.url)
        .token("secret")
        .on_progress(Arc::new(move |p| {
            sink.lock().unwrap().push((p.file.clone(), p.done, p.total))
        }));
    let checkpoint = open_with(&hub, "hub:a/b").unwrap();
    assert_eq!(checkpoint.len(), 19);
    assert_eq!(
        checkpoint.sidecar("params.json").unwrap().unwrap()["dim"],
        3
    );
    let log = server.log().join("\n");
    assert!(
        !log.contains("README") && !log.contains("other.safetensors"),
        "{log}"
    );
    let last = seen.lock().unwrap().last().cloned().unwrap();
    assert_eq!((last.0.as_str(), Some(last.1)), ("model.pth", last.2));

    let repo = dir.path().join("models--a--b");
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    #[cfg(unix)]
    {
        let link = fs::read_link(snapshot(dir.path()).join("model.pth")).unwrap();
        assert!(link.starts_with("../../blobs"), "{}", link.display());
    }
    assert!(
        fs::read_dir(repo.join("blobs"))
            .unwrap()
            .flatten()
            .all(|e| !e.path().to_string_lossy().ends_with("incomplete"))
    );

    // The same revision again: one listing, nothing downloaded. The commit: no request at all.
    let before = server.log().len();
    open_with(&hub, "hub:a/b").unwrap();
    assert_eq!(server.log().len(), before + 1);
    open_with(&hub, &format!("hub:a/b@{COMMIT}")).unwrap();
    assert_eq!(server.log().len(), before + 1);
    // Offline: no request either.
    open_with(&hub.clone().offline(true), "hub:a/b").unwrap();
    assert_eq!(server.log().len(), before + 1);
}

#[test]
fn shards_named_by_the_index_are_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let folder = fixture("zonos2/tiny/sharded");
    let files: Vec<(&str, Vec<u8>)> = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "params.json",
    ]
    .into_iter()
    .map(|n| (n, fs::read(folder.join(n)).unwrap()))
    .collect();
    let server = Server::start(&files, Mode::Normal);
    let hub = Hub::new(dir.path(), &server.url);
    assert_eq!(open_with(&hub, "hub:a/b").unwrap().len(), 99);

    let server = Server::start(&files[1..], Mode::Normal);
    let other = tempfile::tempdir().unwrap();
    let text = failure(&Hub::new(other.path(), &server.url), "hub:a/b");
    assert!(text.contains("model-00001-of-00002.safetensors"), "{text}");
}

/// Of a repository with several checkpoints, the one that is named and no other.
#[test]
fn a_file_is_chosen_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = fs::read(made("kinds.safetensors")).unwrap();
    let files = [
        ("a-encoder.safetensors", bytes.clone()),
        ("a-decoder.safetensors", bytes),
        ("config.json", b"{}".to_vec()),
    ];
    let server = Server::start(&files, Mode::Normal);
    let hub = Hub::new(dir.path(), &server.url);
    let named = |hub: &Hub, name: &str| {
        let options = OpenOptions {
            hub: Some(hub.clone()),
            file: Some(name.into()),
            ..OpenOptions::default()
        };
        Checkpoint::open_with("hub:a/b", &options)
    };
    let opened = named(&hub, "a-decoder.safetensors").unwrap();
    assert!(opened.path().ends_with("a-decoder.safetensors"));
    let log = server.log().join("\n");
    assert!(!log.contains("a-encoder"), "{log}");
    // What is in the cache does, and what is not is named.
    let offline = hub.clone().offline(true);
    assert!(named(&offline, "a-decoder.safetensors").is_ok());
    for (hub, name) in [
        (&offline, "a-encoder.safetensors"),
        (&hub, "b.safetensors"),
        (&offline, "../b.safetensors"),
    ] {
        let text = named(hub, name).unwrap_err().to_string();
        assert!(text.contains(name), "{text}");
    }
    // The other one joins it.
    assert!(named(&hub, "a-encoder.safetensors").is_ok());
    assert!(named(&offline, "a-encoder.safetensors").is_ok());
    // A folder is chosen from in the same way, and a file is taken as it is.
    let options = |name: &str| OpenOptions {
        file: Some(name.into()),
        ..OpenOptions::default()
    };
    let folder = snapshot(dir.path());
    let decoder = options("a-decoder.safetensors");
    assert!(Checkpoint::open_with(&folder, &decoder).is_ok());
    let file = folder.join("a-encoder.safetensors");
    let opened = Checkpoint::open_with(&file, &decoder).unwrap();
    assert_eq!(opened.path(), file);
    let error = Checkpoint::open_with(&folder, &options("c.safetensors")).unwrap_err();
    assert!(error.to_string().contains("c.safetensors"), "{error}");
}

#[test]
fn cut_downloads_are_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&model(), Mode::CutOnce);
    let hub = Hub::new(dir.path(), &server.url);
    assert_eq!(open_with(&hub, "hub:a/b").unwrap().len(), 19);
    let log = server.log().join("\n");
    assert!(log.contains("GET /cdn/model.pth bytes=700-"), "{log}");

    // Left behind by another run
    let dir = tempfile::tempdir().unwrap();
    let bytes = fs::read(made("kinds.pth")).unwrap();
    let hash: String = Sha256::digest(&bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let blobs = dir.path().join("models--a--b/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{hash}.incomplete")), &bytes[..1234]).unwrap();
    let server = Server::start(&model(), Mode::Normal);
    assert_eq!(
        open_with(&Hub::new(dir.path(), &server.url), "hub:a/b")
            .unwrap()
            .len(),
        19
    );
    assert!(server.log().join("\n").contains("bytes=1234-"));

    // A server without ranges: from the beginning
    let dir = tempfile::tempdir().unwrap();
    let blobs = dir.path().join("models--a--b/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{hash}.incomplete")), vec![9; 1000]).unwrap();
    let server = Server::start(&model(), Mode::NoRanges);
    assert_eq!(
        open_with(&Hub::new(dir.path(), &server.url), "hub:a/b")
            .unwrap()
            .len(),
        19
    );
}

#[test]
fn a_download_that_never_ends_is_given_up_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&model(), Mode::AlwaysCut);
    let text = failure(&Hub::new(dir.path(), &server.url), "hub:a/b");
    assert!(
        text.contains("model.pth") && text.contains("continues from there"),
        "{text}"
    );
}

#[test]
fn damaged_downloads_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&model(), Mode::Damaged);
    let text = failure(&Hub::new(dir.path(), &server.url), "hub:a/b");
    assert!(
        text.contains("SHA-256") && text.contains("model.pth"),
        "{text}"
    );
    let blobs = fs::read_dir(dir.path().join("models--a--b/blobs")).unwrap();
    assert_eq!(blobs.count(), 1, "only params.json is there");
}

#[test]
fn refusals_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&model(), Mode::Normal);
    server.repo.lock().unwrap().token = Some("secret".into());
    let hub = Hub::new(dir.path(), &server.url);
    let text = failure(&hub, "hub:a/b");
    assert!(
        text.contains("401") && text.contains("set HF_TOKEN"),
        "{text}"
    );
    let text = failure(&hub.clone().token("wrong"), "hub:a/b");
    assert!(text.contains("was refused"), "{text}");
    let right = hub.clone().token("secret");
    let text = failure(&right, "hub:a/missing");
    assert!(
        text.contains("404") && text.contains("a/missing@main"),
        "{text}"
    );
    let text = failure(&right, "hub:a/b@v9");
    assert!(
        text.contains("a/b@v9") && text.contains("revision"),
        "{text}"
    );
    let text = failure(&hub, "hub:nonsense");
    assert!(text.contains("hub:owner/name"), "{text}");

    let server = Server::start(
        &[("README.md", b"x".to_vec()), ("a.gguf", vec![1; 9])],
        Mode::Normal,
    );
    let text = failure(&Hub::new(dir.path(), &server.url), "hub:a/b");
    assert!(
        text.contains("2 files") && text.contains("model.pth"),
        "{text}"
    );
    // A port on which nobody listens
    let text = failure(&Hub::new(dir.path(), "http://127.0.0.1:9"), "hub:a/b");
    assert!(
        text.contains("cannot be reached") && text.contains("HF_ENDPOINT"),
        "{text}"
    );
}

/// `models--a--b` as another program left it; `links` as on Unix, plain files as on Windows.
fn fabricate(cache: &Path, links: bool) {
    let repo = cache.join("models--a--b");
    let snapshot = repo.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::create_dir_all(repo.join("blobs")).unwrap();
    fs::write(repo.join("refs/main"), format!("{COMMIT}\n")).unwrap();
    let target = snapshot.join("x.safetensors");
    if links {
        write_safetensors(&repo.join("blobs/e1"), &[("w", &[2], 3.0)]);
        #[cfg(unix)]
        std::os::unix::fs::symlink("../../blobs/e1", &target).unwrap();
        #[cfg(not(unix))]
        fs::copy(repo.join("blobs/e1"), &target)
            .map(|_| ())
            .unwrap();
    } else {
        write_safetensors(&target, &[("w", &[2], 3.0)]);
    }
}

#[test]
fn h20_a_full_cache_needs_no_network() {
    // The endpoint refuses connections, so any request would fail the test.
    let dead = "http://127.0.0.1:9";
    for links in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        fabricate(dir.path(), links);
        let hub = Hub::new(dir.path(), dead).offline(true);
        let found = open_with(&hub, "hub:a/b").unwrap();
        assert_eq!(floats(found.tensor_data("w").unwrap()), [3.0, 3.0]);
        assert!(found.notices().is_empty());
        // online, but the hub does not answer
        let found = open_with(&Hub::new(dir.path(), dead), "hub:a/b").unwrap();
        assert!(
            found.notices()[0].contains("cached copy"),
            "{:?}",
            found.notices()
        );

        fs::remove_file(dir.path().join("models--a--b/refs/main")).unwrap();
        let found = open_with(&hub, "hub:a/b").unwrap();
        assert!(
            found.notices()[0].contains("only snapshot"),
            "{:?}",
            found.notices()
        );
        // but not for a revision that was asked for by name
        let text = failure(&hub, "hub:a/b@v2");
        assert!(text.contains("a/b@v2"), "{text}");
        fs::create_dir(dir.path().join("models--a--b/snapshots/other")).unwrap();
        assert!(
            open_with(&hub, "hub:a/b").is_err(),
            "two snapshots: no guess"
        );
    }
}

#[test]
fn h20_hf_home_may_move_and_the_cache_may_be_read_only() {
    let dir = tempfile::tempdir().unwrap();
    fabricate(&dir.path().join("hub"), true);
    let home = dir.path().to_string_lossy().into_owned();
    let hub = Hub::from_vars(|name| match name {
        "HF_HOME" => Some(home.clone()),
        "HF_HUB_OFFLINE" => Some("1".into()),
        "HF_ENDPOINT" => Some("http://127.0.0.1:9".into()),
        _ => None,
    });
    assert_eq!(hub.cache(), dir.path().join("hub"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let lock = |mode| {
            for folder in ["hub", "hub/models--a--b", "hub/models--a--b/refs"] {
                fs::set_permissions(dir.path().join(folder), fs::Permissions::from_mode(mode))
                    .unwrap();
            }
        };
        lock(0o555);
        assert_eq!(open_with(&hub, "hub:a/b").unwrap().len(), 1);
        lock(0o755);
    }
    assert_eq!(open_with(&hub, "hub:a/b").unwrap().len(), 1);
}

#[test]
fn h20_a_miss_names_everything() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::new(dir.path(), "http://127.0.0.1:9").offline(true);
    let text = failure(&hub, "hub:a/b@v1");
    for part in [
        "a/b@v1",
        "model.pth",
        "HF_HUB_OFFLINE",
        &dir.path().to_string_lossy(),
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // A snapshot without its weights
    fabricate(dir.path(), false);
    fs::remove_file(snapshot(dir.path()).join("x.safetensors")).unwrap();
    let text = failure(&hub, "hub:a/b");
    for part in ["a/b@main", "model.pth", &dir.path().to_string_lossy()] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn offline_errors_tell_what_the_cache_has() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::new(dir.path(), "http://127.0.0.1:9").offline(true);
    let text = failure(&hub, "hub:a/b");
    assert!(text.contains("no folder models--a--b"), "{text}");

    fabricate(dir.path(), false);
    let text = failure(&hub, "hub:a/b@v1");
    assert!(
        text.contains("revision 'v1' is not cached") && text.contains(COMMIT),
        "{text}"
    );
    let other = format!("{}0123456789", &COMMIT[..30]);
    let snapshots = dir.path().join("models--a--b/snapshots");
    fs::create_dir(snapshots.join(&other)).unwrap();
    fs::write(dir.path().join("models--a--b/refs/main"), "f".repeat(40)).unwrap();
    let text = failure(&hub, "hub:a/b");
    assert!(text.contains("refs/main names a commit"), "{text}");
    fs::remove_file(dir.path().join("models--a--b/refs/main")).unwrap();
    let text = failure(&hub, "hub:a/b");
    for part in ["2 snapshots and no refs/main", "@REV", COMMIT, &other] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = failure(&hub, &format!("hub:a/b@{}", &COMMIT[..7]));
    assert!(text.contains("give more digits"), "{text}");
}

#[test]
fn a_commit_may_be_abbreviated() {
    let dir = tempfile::tempdir().unwrap();
    fabricate(dir.path(), false);
    // Online or not: a commit never changes, so nobody is asked.
    for offline in [true, false] {
        let hub = Hub::new(dir.path(), "http://127.0.0.1:9").offline(offline);
        for digits in [7, 12, 40] {
            let checkpoint = open_with(&hub, &format!("hub:a/b@{}", &COMMIT[..digits])).unwrap();
            assert!(checkpoint.path().starts_with(snapshot(dir.path())));
            assert!(checkpoint.notices().is_empty());
        }
        assert!(open_with(&hub, &format!("hub:a/b@{}", &COMMIT[..6])).is_err());
    }
}

#[test]
fn listings_with_path_tricks_write_nothing_outside() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let server = Server::start(
        &[
            ("../../../../model.pth", vec![1; 10]),
            ("..\\model.pt", vec![1; 10]),
        ],
        Mode::Normal,
    );
    let text = failure(&Hub::new(&cache, &server.url), "hub:a/b");
    assert!(text.contains("none of its 0 files"), "{text}");
    assert!(fs::read_dir(dir.path()).unwrap().count() <= 1);
}
