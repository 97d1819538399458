//! Streams: lengths call by call, samples, forks.

use zonos_audio::Codes;

use super::decoder::{Suite, codes, wave};
use crate::checks::Checks;
use crate::compare::Tolerance;
use crate::error::Result;
use crate::host::HostTensor;

/// Chunk lists besides those of the folder.
const CHUNKS: [&[usize]; 3] = [&[17], &[5, 0, 3], &[2]];

pub(super) fn run(suite: &Suite<'_>, checks: &mut Checks<'_>) -> Result<()> {
    let golden = checks.golden();
    let whole = codes(golden, "codes")?;
    let limit = wave(&golden.need("audio")?);
    let decoded = HostTensor::signal(&suite.samples(&whole)?);
    let same = if suite.request.bit_exact() {
        Tolerance::Absolute { max_abs: 0.0 }
    } else {
        limit
    };

    let json = json(suite)?;
    let lists = json["streams"].as_array().cloned().unwrap_or_default();
    let numbers = |list: &serde_json::Value| -> Vec<usize> {
        let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter()
            .filter_map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok()))
            .collect()
    };
    for (i, list) in lists.iter().enumerate() {
        let run = streamed(suite, &whole, &numbers(&list["chunks"]))?;
        let mut expected = numbers(&list["emitted"]);
        expected.extend(list["flush"].as_u64().map(|n| n as usize));
        checks.own(
            format!("stream{i}.lengths"),
            &lengths(&expected),
            &lengths(&run.lengths),
            Tolerance::Exact,
        );
        let samples = HostTensor::signal(&run.samples);
        checks.again(&format!("stream{i}"), "audio", &samples, limit)?;
        checks.own(format!("stream{i}.whole"), &decoded, &samples, same);
    }
    for chunks in CHUNKS {
        let run = streamed(suite, &whole, chunks)?;
        let samples = HostTensor::signal(&run.samples);
        let name = format!("stream_by_{chunks:?}.whole");
        checks.own(name, &decoded, &samples, same);
    }
    if golden.has("codes_missing")
        && let Some(expected) = golden.get("audio_missing")?
    {
        let run = streamed(suite, &codes(golden, "codes_missing")?, &[3])?;
        let samples = HostTensor::signal(&run.samples);
        checks.again("streamed", "audio_missing", &samples, wave(&expected))?;
    }
    let Some(at) = json["fork_at"]
        .as_u64()
        .and_then(|n| usize::try_from(n).ok())
    else {
        return Ok(());
    };
    let Some(expected) = golden.get("audio_fork")? else {
        return Ok(());
    };
    let other = codes(golden, "codes_fork")?;
    let mut stream = suite.decoder.stream();
    let head = stream
        .decode(&rows(&whole, 0..at))
        .map_err(|e| suite.fail(e))?;
    let mut fork = stream.fork();
    // One after another in small pieces, so that each could disturb the other.
    let (mut main, mut branch) = (head.clone(), head);
    for t in at..whole.frames().min(other.frames()) {
        let part = stream.decode(&rows(&whole, t..t + 1));
        main.extend(part.map_err(|e| suite.fail(e))?);
        let part = fork.decode(&rows(&other, t..t + 1));
        branch.extend(part.map_err(|e| suite.fail(e))?);
    }
    main.extend(stream.flush().map_err(|e| suite.fail(e))?);
    branch.extend(fork.flush().map_err(|e| suite.fail(e))?);
    checks.key("audio_fork", &HostTensor::signal(&branch), wave(&expected))?;
    checks.own(
        "stream_beside_fork.whole".to_owned(),
        &decoded,
        &HostTensor::signal(&main),
        same,
    );
    Ok(())
}

/// `streams.json` of the folder; null when there is none.
fn json(suite: &Suite<'_>) -> Result<serde_json::Value> {
    let path = suite.request.dir.join("streams.json");
    if !path.is_file() {
        return Ok(serde_json::Value::Null);
    }
    let bytes = std::fs::read(&path).map_err(|source| crate::GoldenError::Io {
        path: path.clone(),
        source,
    })?;
    serde_json::from_slice(&bytes).map_err(|e| crate::GoldenError::Format {
        path,
        problem: format!("not JSON: {e}"),
    })
}

struct Run {
    /// Samples of each call, the flush last.
    lengths: Vec<usize>,
    samples: Vec<f32>,
}

/// The chunks over and over until the codes end.
fn streamed(suite: &Suite<'_>, codes: &Codes, chunks: &[usize]) -> Result<Run> {
    let mut stream = suite.decoder.stream();
    let mut run = Run {
        lengths: Vec::new(),
        samples: Vec::new(),
    };
    let mut at = 0;
    for &chunk in chunks.iter().cycle() {
        let end = (at + chunk).min(codes.frames());
        let part = stream
            .decode(&rows(codes, at..end))
            .map_err(|e| suite.fail(e))?;
        run.lengths.push(part.len());
        run.samples.extend(part);
        at = end;
        if at == codes.frames() {
            break;
        }
    }
    let rest = stream.flush().map_err(|e| suite.fail(e))?;
    run.lengths.push(rest.len());
    run.samples.extend(rest);
    Ok(run)
}

fn lengths(list: &[usize]) -> HostTensor {
    let list: Vec<i32> = list.iter().map(|&n| n as i32).collect();
    HostTensor::rows(1, &list)
}

/// Frames `range` of `codes`.
fn rows(codes: &Codes, range: std::ops::Range<usize>) -> Codes {
    let q = codes.codebooks();
    let values = codes.values()[range.start * q..range.end * q].to_vec();
    Codes::new(range.len(), q, values).expect("a range of rows has whole rows")
}
