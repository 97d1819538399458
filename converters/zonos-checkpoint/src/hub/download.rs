//! The hub's HTTP protocol, as far as a download needs it.
//!
//! `GET /api/models/REPO/revision/REV` lists a commit's files. `HEAD /REPO/resolve/COMMIT/FILE`
//! tells name and size of the blob (`X-Linked-ETag`, `X-Linked-Size` for large files, which answer
//! with a redirect to a storage server; `ETag`, `Content-Length` otherwise), and `GET` with `Range`
//! fetches what is missing of it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::http::{HeaderMap, Response};
use ureq::{Agent, Body};

use super::{DownloadProgress, Hub, Id, read_word};
use crate::CheckpointError;
use crate::safetensors::is_plain_file_name;

/// Redirects followed for one request.
const MAX_REDIRECTS: usize = 8;
/// Attempts in a row that bring no byte before a download gives up.
const MAX_IDLE_ATTEMPTS: u32 = 4;
/// Largest file listing read.
const MAX_LISTING: u64 = 64 << 20;

pub(super) struct Client<'a> {
    hub: &'a Hub,
    id: &'a Id,
    agent: Agent,
    repo: PathBuf,
}

pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
}

/// What the server says about a file before it is fetched.
struct Blob {
    etag: String,
    size: Option<u64>,
}

/// Why one attempt failed.
enum Failure {
    /// Worth another attempt.
    Broken(String),
    Final(CheckpointError),
}

impl<'a> Client<'a> {
    pub(super) fn new(hub: &'a Hub, id: &'a Id) -> Self {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .user_agent(concat!("zonos-burn/", env!("CARGO_PKG_VERSION")));
        // A proxy cannot reach this machine's own servers.
        let host = authority(&hub.endpoint).unwrap_or_default();
        if host.starts_with("127.0.0.1")
            || host.starts_with("localhost")
            || host.starts_with("[::1]")
        {
            config = config.proxy(None);
        }
        Self {
            hub,
            id,
            agent: config.build().into(),
            repo: hub.cache.join(id.folder()),
        }
    }

    /// The commit behind the revision and the files it has.
    pub(super) fn list(&self) -> Result<Listing, CheckpointError> {
        let url = format!(
            "{}/api/models/{}/revision/{}",
            self.hub.endpoint,
            self.id.repo(),
            escape(&self.id.revision, false)
        );
        let mut response = self.request("GET", &url, None).map_err(|e| match e {
            Failure::Broken(reason) => self.unreachable(&reason),
            Failure::Final(e) => e,
        })?;
        self.check_status(&response, "its list of files")?;
        let mut text = Vec::new();
        response
            .body_mut()
            .as_reader()
            .take(MAX_LISTING)
            .read_to_end(&mut text)
            .map_err(|e| self.unreachable(&e.to_string()))?;
        let wrong = |what: &str| {
            CheckpointError::Hub(format!(
                "hub:{}: {} answered with something that is no list of files ({what}); check HF_ENDPOINT",
                self.id, self.hub.endpoint
            ))
        };
        let json: serde_json::Value =
            serde_json::from_slice(&text).map_err(|e| wrong(&e.to_string()))?;
        let commit = json["sha"]
            .as_str()
            .filter(|c| is_plain_file_name(c) && c.len() <= 64)
            .ok_or_else(|| wrong("no 'sha'"))?
            .to_string();
        let files = json["siblings"]
            .as_array()
            .ok_or_else(|| wrong("no 'siblings'"))?
            .iter()
            .filter_map(|s| s["rfilename"].as_str())
            // Names become paths in the cache.
            .filter(|name| name.split('/').all(is_plain_file_name))
            .map(str::to_string)
            .collect();
        Ok(Listing { commit, files })
    }

    /// Makes sure that `file` is in the snapshot; returns its path there.
    pub(super) fn get(&self, commit: &str, file: &str) -> Result<PathBuf, CheckpointError> {
        let pointer = self.repo.join("snapshots").join(commit).join(file);
        if pointer.is_file() {
            return Ok(pointer);
        }
        let url = format!(
            "{}/{}/resolve/{commit}/{}",
            self.hub.endpoint,
            self.id.repo(),
            escape(file, true)
        );
        let blob = self.describe(&url, commit, file)?;
        let blobs = self.repo.join("blobs");
        create_dir(&blobs)?;
        let target = blobs.join(&blob.etag);
        // Two programs may want the same file: one downloads, the other finds it done.
        let _lock = self.lock(&blob.etag);
        if !target.is_file() {
            let partial = blobs.join(format!("{}.incomplete", blob.etag));
            self.download(&url, file, &blob, &partial)?;
            std::fs::rename(&partial, &target).map_err(|e| CheckpointError::io(&target, e))?;
        }
        if let Some(folder) = pointer.parent() {
            create_dir(folder)?;
        }
        let depth = file.split('/').count() + 1;
        let link = PathBuf::from("../".repeat(depth))
            .join("blobs")
            .join(&blob.etag);
        if symlink(&link, &pointer).is_err() && !pointer.is_file() {
            // No links here (Windows without developer mode): the snapshot holds the file itself.
            std::fs::rename(&target, &pointer).map_err(|e| CheckpointError::io(&pointer, e))?;
        }
        Ok(pointer)
    }

    /// Remembers which commit the revision was; a cache that cannot be written is no error.
    pub(super) fn set_reference(&self, commit: &str) {
        if self.id.revision == commit {
            return;
        }
        let path = self.repo.join("refs").join(&self.id.revision);
        if read_word(&path).is_some_and(|old| old.trim() == commit) {
            return;
        }
        // Writing into a pipe would wait for its reader.
        if path.metadata().is_ok_and(|meta| !meta.is_file()) {
            tracing::warn!("{}: not a regular file", path.display());
            return;
        }
        let written = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&path, commit));
        if let Err(e) = written {
            tracing::warn!("{}: {e}", path.display());
        }
    }

    /// Name and size of the blob behind `url`.
    fn describe(&self, url: &str, commit: &str, file: &str) -> Result<Blob, CheckpointError> {
        let mut url = url.to_string();
        let mut linked_size = None;
        for _ in 0..MAX_REDIRECTS {
            let response = self.send("HEAD", &url, None).map_err(|e| match e {
                Failure::Broken(reason) => self.unreachable(&reason),
                Failure::Final(e) => e,
            })?;
            let headers = response.headers();
            linked_size = linked_size.or_else(|| number(headers, "x-linked-size"));
            if let Some(etag) = text(headers, "x-linked-etag") {
                return Ok(Blob {
                    etag: blob_name(etag, commit, file),
                    size: linked_size,
                });
            }
            if let Some(location) = redirect(&response) {
                url = self.join_url(&url, location)?;
                continue;
            }
            self.check_status(&response, file)?;
            return Ok(Blob {
                etag: blob_name(text(headers, "etag").unwrap_or_default(), commit, file),
                size: linked_size.or_else(|| number(headers, "content-length")),
            });
        }
        Err(self.unreachable("too many redirects"))
    }

    /// Completes `partial`, and checks it.
    fn download(
        &self,
        url: &str,
        file: &str,
        blob: &Blob,
        partial: &Path,
    ) -> Result<(), CheckpointError> {
        let io = |e: std::io::Error| CheckpointError::io(partial, e);
        let mut out = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(partial)
            .map_err(io)?;
        let mut done = out.metadata().map_err(io)?.len();
        if blob.size.is_some_and(|size| done > size) {
            out.set_len(0).map_err(io)?;
            done = 0;
        }
        let mut idle = 0;
        while blob.size.is_none_or(|size| done < size) {
            let before = done;
            match self.attempt(url, file, blob, &mut out, partial, &mut done) {
                Ok(()) => {
                    if blob.size.is_none_or(|size| done >= size) {
                        break;
                    }
                }
                Err(Failure::Final(e)) => return Err(e),
                Err(Failure::Broken(reason)) => {
                    tracing::warn!("hub:{}: {file}: {reason} after {done} bytes", self.id);
                    idle = if done > before { 0 } else { idle + 1 };
                    if idle >= MAX_IDLE_ATTEMPTS {
                        return Err(CheckpointError::Hub(format!(
                            "hub:{}: {file}: the download broke off after {done} bytes ({reason}); run the same command again, it continues from there",
                            self.id
                        )));
                    }
                    std::thread::sleep(Duration::from_millis(200 << idle));
                    continue;
                }
            }
            // A complete answer that is shorter than announced is a broken one.
            idle = if done > before { 0 } else { idle + 1 };
            if idle >= MAX_IDLE_ATTEMPTS {
                return Err(CheckpointError::Hub(format!(
                    "hub:{}: {file}: the server sends no more than {done} of {} bytes; try again later",
                    self.id,
                    blob.size.unwrap_or(0)
                )));
            }
        }
        out.flush().and_then(|()| out.sync_all()).map_err(io)?;
        if let Some(size) = blob.size
            && done != size
        {
            let _ = std::fs::remove_file(partial);
            return Err(CheckpointError::Hub(format!(
                "hub:{}: {file}: the server sent {done} bytes, expected {size}; try again",
                self.id
            )));
        }
        self.check_hash(file, blob, &mut out, partial)
    }

    /// One request for the rest of the file; `done` counts what is safely in it.
    fn attempt(
        &self,
        url: &str,
        file: &str,
        blob: &Blob,
        out: &mut File,
        partial: &Path,
        done: &mut u64,
    ) -> Result<(), Failure> {
        let io = |e: std::io::Error| Failure::Final(CheckpointError::io(partial, e));
        let mut response = self.request("GET", url, Some(*done))?;
        match response.status().as_u16() {
            206 if range_start(response.headers()) == Some(*done) => {}
            206 => return Err(Failure::Broken("another range was sent".into())),
            // The server ignores ranges: begin again.
            200 => *done = 0,
            416 => {
                out.set_len(0).map_err(io)?;
                *done = 0;
                return Err(Failure::Broken("the partial file does not fit".into()));
            }
            429 | 500..=599 => {
                return Err(Failure::Broken(format!(
                    "the server answered {}",
                    response.status()
                )));
            }
            _ => self.check_status(&response, file).map_err(Failure::Final)?,
        }
        out.set_len(*done).map_err(io)?;
        out.seek(SeekFrom::Start(*done)).map_err(io)?;
        let mut reader = response.body_mut().as_reader();
        let mut buffer = vec![0u8; 1 << 18];
        loop {
            let n = match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(e) => return Err(Failure::Broken(e.to_string())),
            };
            out.write_all(&buffer[..n]).map_err(io)?;
            *done += n as u64;
            if blob.size.is_some_and(|size| *done > size) {
                return Err(Failure::Final(CheckpointError::Hub(format!(
                    "hub:{}: {file}: the server sends more than the {} bytes announced",
                    self.id,
                    blob.size.unwrap_or(0)
                ))));
            }
            if let Some(progress) = &self.hub.progress {
                progress(&DownloadProgress {
                    file: file.into(),
                    done: *done,
                    total: blob.size,
                });
            }
        }
    }

    /// Large files are named by their SHA-256.
    fn check_hash(
        &self,
        file: &str,
        blob: &Blob,
        out: &mut File,
        partial: &Path,
    ) -> Result<(), CheckpointError> {
        if blob.etag.len() != 64 || !blob.etag.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(());
        }
        let io = |e: std::io::Error| CheckpointError::io(partial, e);
        out.seek(SeekFrom::Start(0)).map_err(io)?;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0u8; 1 << 20];
        loop {
            let n = out.read(&mut buffer).map_err(io)?;
            if n == 0 {
                break;
            }
            hasher.update(&buffer[..n]);
        }
        if hex(&hasher.finalize()) == blob.etag.to_ascii_lowercase() {
            return Ok(());
        }
        let _ = std::fs::remove_file(partial);
        Err(CheckpointError::Hub(format!(
            "hub:{}: {file}: its SHA-256 is not the announced one; the damaged download was removed, run the command again",
            self.id
        )))
    }

    /// A request with redirects followed.
    fn request(
        &self,
        method: &str,
        url: &str,
        from: Option<u64>,
    ) -> Result<Response<Body>, Failure> {
        let mut url = url.to_string();
        for _ in 0..MAX_REDIRECTS {
            let response = self.send(method, &url, from)?;
            match redirect(&response) {
                Some(location) => {
                    url = self.join_url(&url, location).map_err(Failure::Final)?;
                }
                None => return Ok(response),
            }
        }
        Err(Failure::Broken("too many redirects".into()))
    }

    fn send(&self, method: &str, url: &str, from: Option<u64>) -> Result<Response<Body>, Failure> {
        let mut request = match method {
            "HEAD" => self.agent.head(url),
            _ => self.agent.get(url),
        };
        // Sizes and ranges count the file's own bytes.
        request = request.header("Accept-Encoding", "identity");
        if let Some(from) = from
            && from > 0
        {
            request = request.header("Range", format!("bytes={from}-"));
        }
        // The token is for the hub, not for the servers it redirects to.
        if let Some(token) = &self.hub.token
            && authority(url) == authority(&self.hub.endpoint)
            && url.starts_with("https:") == self.hub.endpoint.starts_with("https:")
        {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|e| Failure::Broken(e.to_string()))
    }

    fn check_status(&self, response: &Response<Body>, what: &str) -> Result<(), CheckpointError> {
        let status = response.status().as_u16();
        let id = self.id;
        let reason = match status {
            200..=299 => return Ok(()),
            401 | 403 => {
                let have = if self.hub.token.is_some() {
                    "the token in use was refused; accept the model's terms on its page, or set HF_TOKEN to a token that may read it"
                } else {
                    "no token is set; accept the model's terms on its page and set HF_TOKEN"
                };
                format!("hub:{id}: {what}: access denied ({status}); {have}")
            }
            404 => format!(
                "hub:{id}: {what}: not found at {} (404); check owner, name and revision{}",
                self.hub.endpoint,
                if self.hub.token.is_some() {
                    ""
                } else {
                    ", and for a private model set HF_TOKEN"
                }
            ),
            _ => format!(
                "hub:{id}: {what}: {} answered {status}; try again later",
                self.hub.endpoint
            ),
        };
        Err(CheckpointError::Hub(reason))
    }

    fn unreachable(&self, reason: &str) -> CheckpointError {
        CheckpointError::Hub(format!(
            "hub:{}: {} cannot be reached ({reason}); check the network and HF_ENDPOINT, or give a local path (cache {})",
            self.id,
            self.hub.endpoint,
            self.hub.cache.display()
        ))
    }

    /// Where a redirect leads.
    fn join_url(&self, base: &str, location: &str) -> Result<String, CheckpointError> {
        let (scheme, rest) = base.split_once("://").unwrap_or(("https", base));
        let host = rest.split('/').next().unwrap_or_default();
        let next = if location.starts_with("http://") || location.starts_with("https://") {
            location.to_string()
        } else if let Some(other) = location.strip_prefix("//") {
            format!("{scheme}://{other}")
        } else if location.starts_with('/') {
            format!("{scheme}://{host}{location}")
        } else {
            let folder = base.rsplit_once('/').map_or(base, |(folder, _)| folder);
            format!("{folder}/{location}")
        };
        if scheme == "https" && !next.starts_with("https://") {
            return Err(self.unreachable("it redirects to an unencrypted address"));
        }
        Ok(next)
    }

    fn lock(&self, etag: &str) -> Option<File> {
        let folder = self.hub.cache.join(".locks").join(self.id.folder());
        std::fs::create_dir_all(&folder).ok()?;
        let file = File::create(folder.join(format!("{etag}.lock"))).ok()?;
        file.lock().ok()?;
        Some(file)
    }
}

fn create_dir(path: &Path) -> Result<(), CheckpointError> {
    std::fs::create_dir_all(path).map_err(|source| CheckpointError::Io {
        path: path.into(),
        source,
    })
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

fn redirect(response: &Response<Body>) -> Option<&str> {
    matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308)
        .then(|| text(response.headers(), "location"))
        .flatten()
}

/// First byte of `Content-Range: bytes FIRST-LAST/TOTAL`.
fn range_start(headers: &HeaderMap) -> Option<u64> {
    text(headers, "content-range")?
        .trim()
        .strip_prefix("bytes ")?
        .split('-')
        .next()?
        .trim()
        .parse()
        .ok()
}

/// `host:port` of a URL.
fn authority(url: &str) -> Option<&str> {
    url.split_once("://")?.1.split(['/', '?', '#']).next()
}

/// The file name of a blob: the bare ETag, or a hash when there is none that could be a file name.
fn blob_name(etag: &str, commit: &str, file: &str) -> String {
    let bare = etag.trim().trim_start_matches("W/").trim_matches('"');
    let plain = !bare.is_empty()
        && bare.len() <= 128
        && bare
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    if plain {
        return bare.into();
    }
    // Not 64 digits, so that it is not taken for the hash of the contents.
    hex(&Sha256::digest(format!("{etag}\n{commit}\n{file}")))[..40].into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn escape(text: &str, keep_slash: bool) -> String {
    text.bytes()
        .map(|b| {
            if b.is_ascii_alphanumeric()
                || matches!(b, b'-' | b'_' | b'.' | b'~')
                || (keep_slash && b == b'/')
            {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}
