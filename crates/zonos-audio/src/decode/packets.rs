//! Compressed packets: demuxers and decoders of `symphonia`, Opus of `ropus`.

use std::io;

use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::codecs::audio::well_known::{
    CODEC_ID_AAC, CODEC_ID_ALAC, CODEC_ID_FLAC, CODEC_ID_MP1, CODEC_ID_MP2, CODEC_ID_MP3,
    CODEC_ID_OPUS, CODEC_ID_VORBIS,
};
use symphonia::core::codecs::audio::{
    AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions,
};
use symphonia::core::errors::Error;
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::default::codecs::MpaDecoder;
use symphonia::default::formats::{
    AdtsReader, CafReader, FlacReader, IsoMp4Reader, MkvReader, MpaReader, OggReader,
};

use super::opus::{self, Head, Opus};
use super::sink::Sink;
use super::sniff::Container;
use super::source::Source;
use super::wav::cut_short;
use super::{AudioInfo, Problem, Reader, caf, matroska, mp4};

/// Packets in a row that may give nothing: damaged ones, or those of a hostile index.
const MAX_BARREN: u32 = 4096;

/// Damaged packets at the start after which a file is given up.
const MAX_TRIES: u32 = 64;

/// What the container tells about its tracks, beyond what the demuxer does.
enum Index {
    None,
    Mp4(mp4::Movie),
    Matroska(matroska::Segment),
    Caf(caf::Layout),
}

enum Codec {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Opus),
}

/// Frames of a packet that was decoded, one buffer a channel.
type Planes = Vec<Vec<f32>>;

pub(super) struct Packets {
    format: Box<dyn FormatReader>,
    codec: Codec,
    track: u32,
    container: Container,
    info: AudioInfo,
    /// The first packet's frames, decoded to see what they are, and its padding.
    first: Option<(Planes, u64)>,
    /// Frames of priming to drop.
    skip: u64,
    /// Frames to keep after them.
    keep: Option<u64>,
    /// Frames of padding in the last packet, and the number of all frames that goes with it.
    padding: u64,
    total: Option<u64>,
    /// Whether the sound's end was seen, where the container has a mark for it.
    ended: bool,
    /// Whether the end of the file is the end of the sound, wherever it comes.
    live: bool,
    /// Whether the file ends before the sound that its header tells.
    short: bool,
    /// Tracks with sound.
    audio_tracks: usize,
    budget: Budget,
    damaged: u32,
}

/// Bounds what a hostile index can make of a small file.
struct Budget {
    bytes: u64,
    barren: u32,
}

impl Packets {
    pub(super) fn open(mut source: Source, container: Container) -> Result<Self, Problem> {
        let index = match container {
            Container::Mp4 => Index::Mp4(mp4::scan(&mut source)?),
            Container::Matroska => Index::Matroska(matroska::scan(&mut source)?),
            Container::Caf => Index::Caf(caf::scan(&mut source)?),
            _ => Index::None,
        };
        index.check()?;
        source.go_to(0)?;
        let budget = Budget {
            // Packets lie in the file once; the slack is for the smallest ones.
            bytes: 2 * source.len() + (1 << 16),
            barren: 0,
        };
        let stream = MediaSourceStream::new(Box::new(source), Default::default());
        let mut format =
            demuxer(stream, container).map_err(|error| index.problem(error, container))?;
        let (track, codec) = choose(format.as_ref(), &index, container)?;
        let audio_tracks = audio_tracks(format.as_ref());
        let first = first(format.as_mut(), &track, codec, budget)?;
        Self::assemble(format, track, container, &index, audio_tracks, first)
    }

    fn assemble(
        format: Box<dyn FormatReader>,
        track: Track,
        container: Container,
        index: &Index,
        audio_tracks: usize,
        first: First,
    ) -> Result<Self, Problem> {
        let params = audio(&track).ok_or(Problem::NoAudioTrack(container.name()))?;
        let First {
            codec,
            planes,
            padding: trim,
            sample_rate,
            channels,
            budget,
            damaged,
        } = first;
        let info = AudioInfo {
            container: match index {
                Index::Matroska(segment) if segment.webm => "WebM",
                Index::Matroska(_) => "Matroska",
                _ => container.name(),
            },
            codec: codec.name(params.codec),
            sample_rate,
            channels,
            bits_per_sample: match params.codec {
                CODEC_ID_FLAC | CODEC_ID_ALAC => params.bits_per_sample.filter(|&bits| bits > 0),
                _ => None,
            },
            frames: None,
        };
        let mut this = Self {
            format,
            codec,
            track: track.id,
            container,
            info,
            first: planes.map(|planes| (planes, trim)),
            skip: 0,
            keep: None,
            padding: 0,
            total: None,
            ended: true,
            live: matches!(index, Index::Matroska(segment) if segment.live),
            short: matches!(index, Index::Caf(layout) if layout.short),
            audio_tracks,
            budget,
            damaged,
        };
        this.trim(&track, index)?;
        Ok(this)
    }

    /// Finds out what to cut.
    fn trim(&mut self, track: &Track, index: &Index) -> Result<(), Problem> {
        let rate = self.info.sample_rate;
        let pre_skip = match (&self.codec, audio(track)) {
            (Codec::Opus(_), Some(params)) => head(params, self.container)?.pre_skip,
            _ => 0,
        };
        match (self.container, index) {
            (Container::Mpeg, _) => {
                // Known from a tag of the encoder, else only estimated.
                if let (Some(delay), Some(frames)) = (track.delay, track.num_frames) {
                    self.skip = u64::from(delay);
                    self.padding = u64::from(track.padding.unwrap_or(0));
                    self.total = Some(frames + self.skip + self.padding);
                    self.info.frames = Some(frames);
                }
            }
            (Container::Flac, _) => {
                self.total = track.num_frames;
                self.info.frames = track.num_frames;
            }
            (Container::Ogg, _) => {
                self.skip = pre_skip;
                self.ended = track.num_frames.is_some();
                self.info.frames = track.num_frames.map(|n| n.saturating_sub(pre_skip));
            }
            (_, Index::Mp4(movie)) => {
                let length = track.duration.zip(track.time_base).and_then(|(d, base)| {
                    let ticks = u128::from(d.get()) * u128::from(base.numer.get());
                    u64::try_from(ticks * u128::from(rate) / u128::from(base.denom.get())).ok()
                });
                let length = length.filter(|&n| n > 0);
                (self.skip, self.keep) = movie.trim(track.id, rate, length);
                if self.skip == 0 {
                    self.skip = pre_skip;
                }
                self.info.frames = self
                    .keep
                    .or_else(|| length.map(|n| n.saturating_sub(self.skip)));
            }
            (_, Index::Matroska(segment)) => {
                let frames = |ns: u64| {
                    let frames = u128::from(ns) * u128::from(rate);
                    u64::try_from((frames + 500_000_000) / 1_000_000_000).unwrap_or(u64::MAX)
                };
                if let Some(track) = segment.track(track.id) {
                    self.padding = frames(track.padding);
                    self.skip = frames(track.delay);
                }
                if pre_skip > 0 {
                    self.skip = pre_skip;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Codec {
    fn name(&self, id: AudioCodecId) -> &'static str {
        match (self, id) {
            (Self::Opus(_), _) => "Opus",
            (_, CODEC_ID_FLAC) => "FLAC",
            (_, CODEC_ID_ALAC) => "ALAC",
            (_, CODEC_ID_MP1) => "MPEG layer I",
            (_, CODEC_ID_MP2) => "MPEG layer II",
            (_, CODEC_ID_MP3) => "MP3",
            (_, CODEC_ID_AAC) => "AAC",
            (_, CODEC_ID_VORBIS) => "Vorbis",
            (Self::Symphonia(decoder), _) => match decoder.codec_info().short_name {
                "pcm_alaw" => "A-law",
                "pcm_mulaw" => "mu-law",
                name if name.starts_with("pcm_f") => "float PCM",
                name if name.starts_with("pcm_") => "PCM",
                name => name,
            },
        }
    }
}

impl Index {
    /// Refuses what has no sound, before the demuxer looks at it.
    fn check(&self) -> Result<(), Problem> {
        match self {
            Self::Mp4(movie) if !movie.tracks.iter().any(|t| &t.handler == b"soun") => {
                Err(Problem::NoAudioTrack("MP4"))
            }
            Self::Matroska(segment)
                if !segment.tracks.is_empty() && !segment.tracks.iter().any(|t| t.kind == 2) =>
            {
                Err(Problem::NoAudioTrack("Matroska"))
            }
            _ => Ok(()),
        }
    }

    /// What the container calls the codec of its first track with sound.
    fn codec_name(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Mp4(movie) => {
                let mut tracks = movie.tracks.iter();
                let track = tracks.find(|t| &t.handler == b"soun")?;
                Some(mp4::codec_name(track.codec))
            }
            Self::Matroska(segment) => {
                let track = segment.tracks.iter().find(|t| t.kind == 2)?;
                Some(matroska::codec_name(&track.codec))
            }
            Self::Caf(layout) => Some(caf::codec_name(layout.codec)),
        }
    }

    /// What a demuxer's refusal of the file means.
    fn problem(&self, error: Error, container: Container) -> Problem {
        match (error, self) {
            (Error::Unsupported(what), Self::None) => {
                Problem::unsupported(format!("this kind of stream ({what})"), container.name())
            }
            (Error::Unsupported(what), _) => {
                let codec = self.codec_name().unwrap_or_default();
                Problem::unsupported(format!("{codec} ({what})"), container.name())
            }
            (error, _) => plain(error),
        }
    }
}

/// An error of a library, as ours.
fn plain(error: Error) -> Problem {
    match error {
        Error::IoError(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            Problem::CutShort("it ends where more was expected")
        }
        Error::IoError(e) => Problem::Read(e),
        Error::DecodeError(what) | Error::Unsupported(what) | Error::LimitError(what) => {
            Problem::damaged(what)
        }
        Error::ResetRequired => Problem::damaged("another stream begins"),
        other => Problem::damaged(other.to_string()),
    }
}

fn demuxer(
    stream: MediaSourceStream<'static>,
    container: Container,
) -> Result<Box<dyn FormatReader>, Error> {
    let options = FormatOptions::default();
    Ok(match container {
        Container::Flac => Box::new(FlacReader::try_new(stream, options)?),
        Container::Ogg => Box::new(OggReader::try_new(stream, options)?),
        Container::Mp4 => Box::new(IsoMp4Reader::try_new(stream, options)?),
        Container::Matroska => Box::new(MkvReader::try_new(stream, options)?),
        Container::Mpeg => Box::new(MpaReader::try_new(stream, options)?),
        Container::Adts => Box::new(AdtsReader::try_new(stream, options)?),
        Container::Caf => Box::new(CafReader::try_new(stream, options)?),
    })
}

fn audio(track: &Track) -> Option<&AudioCodecParameters> {
    track.codec_params.as_ref()?.audio()
}

fn audio_tracks(format: &dyn FormatReader) -> usize {
    let tracks = format.tracks().iter();
    tracks
        .filter(|t| t.track_type() == Some(TrackType::Audio))
        .count()
}

/// The first track that can be decoded.
fn choose(
    format: &dyn FormatReader,
    index: &Index,
    container: Container,
) -> Result<(Track, Codec), Problem> {
    let mut problem = None;
    for track in format.tracks() {
        let Some(params) = audio(track) else { continue };
        match decoder(params, container) {
            Ok(codec) => return Ok((track.clone(), codec)),
            Err(Problem::Unsupported { codec, .. }) if codec.is_empty() => {
                problem.get_or_insert_with(|| {
                    let codec = index.codec_name().unwrap_or_else(|| "its codec".to_owned());
                    Problem::unsupported(codec, container.name())
                });
            }
            Err(other) => {
                problem.get_or_insert(other);
            }
        }
    }
    Err(problem.unwrap_or_else(|| match index.codec_name() {
        Some(codec) => Problem::unsupported(codec, container.name()),
        None => Problem::NoAudioTrack(container.name()),
    }))
}

fn head(params: &AudioCodecParameters, container: Container) -> Result<Head, Problem> {
    match params.extra_data.as_deref() {
        Some(bytes) => Head::parse(bytes, container == Container::Mp4),
        None => Err(Problem::damaged("no Opus header")),
    }
}

/// A decoder; an unsupported codec without a name is for the caller to name.
fn decoder(params: &AudioCodecParameters, container: Container) -> Result<Codec, Problem> {
    let name = container.name();
    if params.codec == CODEC_ID_OPUS {
        return Ok(Codec::Opus(Opus::new(&head(params, container)?)?));
    }
    // Only Ogg marks what to cut packet by packet; the rest is cut here.
    let options = AudioDecoderOptions::default().gapless(container == Container::Ogg);
    let decoder: Result<Box<dyn AudioDecoder>, Error> = match params.codec {
        CODEC_ID_MP1 | CODEC_ID_MP2 | CODEC_ID_MP3 => {
            MpaDecoder::try_new(params, &options).map(|d| Box::new(d) as _)
        }
        _ => symphonia::default::get_codecs().make_audio_decoder(params, &options),
    };
    match decoder {
        Ok(decoder) => Ok(Codec::Symphonia(decoder)),
        Err(Error::Unsupported(_)) if params.codec == CODEC_ID_AAC => Err(Problem::unsupported(
            "AAC of another kind than AAC-LC in mono or stereo (HE-AAC, surround)",
            name,
        )),
        Err(Error::Unsupported(_)) => Err(Problem::unsupported("", name)),
        Err(other) => Err(plain(other)),
    }
}

/// What the first packet told.
struct First {
    codec: Codec,
    planes: Option<Planes>,
    padding: u64,
    sample_rate: u32,
    channels: usize,
    budget: Budget,
    damaged: u32,
}

/// Decodes the first packet that can be: headers of containers are not to be trusted with the rate
/// and the channels.
fn first(
    format: &mut dyn FormatReader,
    track: &Track,
    mut codec: Codec,
    mut budget: Budget,
) -> Result<First, Problem> {
    let params = audio(track).cloned().unwrap_or_default();
    let mut damaged = 0;
    let mut planes = Planes::new();
    let mut last = None;
    while damaged < MAX_TRIES {
        let packet = match format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(error) => {
                last = Some(plain(error));
                break;
            }
        };
        budget.take(&packet.data)?;
        if packet.track_id != track.id {
            continue;
        }
        match codec.decode(&packet, &mut planes) {
            Some((sample_rate, channels)) => {
                return Ok(First {
                    codec,
                    planes: Some(planes),
                    padding: packet.trim_end.get(),
                    sample_rate,
                    channels,
                    budget,
                    damaged,
                });
            }
            None => damaged += 1,
        }
    }
    if let Some(problem) = last {
        return Err(problem);
    }
    if damaged > 0 {
        return Err(Problem::damaged("no packet of it can be decoded"));
    }
    // An empty file; the headers have to do.
    let params = match &codec {
        Codec::Symphonia(decoder) => decoder.codec_params().clone(),
        Codec::Opus(_) => params,
    };
    Ok(First {
        sample_rate: match &codec {
            Codec::Opus(_) => opus::RATE,
            Codec::Symphonia(_) => params.sample_rate.unwrap_or(0),
        },
        channels: params.channels.map_or(0, |c| c.count()),
        codec,
        planes: None,
        padding: 0,
        budget,
        damaged,
    })
}

impl Budget {
    fn take(&mut self, packet: &[u8]) -> Result<(), Problem> {
        let left = self.bytes.checked_sub(packet.len() as u64);
        self.bytes = left.ok_or_else(|| {
            Problem::damaged("its index points at the same bytes again and again")
        })?;
        if packet.is_empty() {
            self.barren()?;
        }
        Ok(())
    }

    fn barren(&mut self) -> Result<(), Problem> {
        self.barren += 1;
        if self.barren > MAX_BARREN {
            return Err(Problem::damaged("thousands of packets without sound"));
        }
        Ok(())
    }
}

impl Codec {
    /// Decodes a packet into one buffer a channel; gives its rate and channels, or `None` where it is
    /// damaged.
    fn decode(
        &mut self,
        packet: &symphonia::core::packet::Packet,
        planes: &mut Planes,
    ) -> Option<(u32, usize)> {
        match self {
            Self::Opus(opus) => {
                opus.decode(&packet.data, planes)?;
                Some((opus::RATE, planes.len()))
            }
            Self::Symphonia(decoder) => {
                let buffer: GenericAudioBufferRef<'_> = decoder.decode(packet).ok()?;
                buffer.copy_to_vecs_planar(planes);
                let spec = buffer.spec();
                Some((spec.rate(), spec.channels().count()))
            }
        }
    }
}

impl Packets {
    /// Hands one packet's frames on, without the padding that the container marks.
    fn push(&self, planes: &mut Planes, padding: u64, sink: &mut Sink) -> Result<u64, Problem> {
        if matches!(self.codec, Codec::Opus(_)) && padding > 0 {
            for plane in planes.iter_mut() {
                let keep = (plane.len() as u64).saturating_sub(padding);
                plane.truncate(keep as usize);
            }
        }
        sink.push_planar(planes)?;
        Ok(planes.first().map_or(0, |p| p.len() as u64))
    }

    /// Everything after the first packet. The count is of frames before trimming.
    fn rest(&mut self, sink: &mut Sink, count: &mut u64) -> Result<(), Problem> {
        let mut planes = Planes::new();
        loop {
            let packet = match self.format.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => return Ok(()),
                Err(Error::ResetRequired) => {
                    sink.warn(
                        "several streams follow each other in the file; only the first was read",
                    );
                    return Ok(());
                }
                Err(Error::IoError(e)) if self.live && e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(());
                }
                Err(error) => return Err(plain(error)),
            };
            self.budget.take(&packet.data)?;
            if packet.track_id != self.track {
                continue;
            }
            let Some((rate, channels)) = self.codec.decode(&packet, &mut planes) else {
                self.damaged += 1;
                self.budget.barren()?;
                continue;
            };
            if rate != self.info.sample_rate
                || !matches!(channels, 1) && channels != self.info.channels
            {
                return Err(Problem::damaged(format!(
                    "{rate} Hz and {channels} channels follow {} Hz and {}",
                    self.info.sample_rate, self.info.channels
                )));
            }
            let frames = self.push(&mut planes, packet.trim_end.get(), sink)?;
            *count += frames;
            if frames > 0 {
                self.budget.barren = 0;
            } else {
                self.budget.barren()?;
            }
        }
    }

    /// Cuts the padding and says what is missing.
    fn finish(&self, sink: &mut Sink, count: u64) {
        match (self.container, self.total) {
            (_, Some(total)) if count < total => {
                let promised = total.saturating_sub(self.skip + self.padding);
                if sink.frames() < promised {
                    sink.warn(cut_short(sink.frames(), promised));
                }
            }
            // More than the tag promises: files were joined, and the tag is of the first one.
            (Container::Mpeg, Some(total)) if count > total => {}
            _ => sink.drop_last(self.padding),
        }
        // An edit list is rounded, and may be made for a picture that lasts a little longer.
        let slack = u64::from(self.info.sample_rate);
        if let Some(promised) = self.keep
            && promised.saturating_sub(sink.frames()) > slack
        {
            sink.warn(cut_short(sink.frames(), promised));
        }
        if self.short {
            sink.warn("the file is cut short: it ends within its samples");
        }
        if !self.ended {
            sink.warn("the file is cut short: its last page is missing");
        }
        if self.damaged > 0 {
            sink.warn(format!("{} damaged packets were left out", self.damaged));
        }
        if self.audio_tracks > 1 {
            sink.warn(format!(
                "the file has {} audio tracks; the first was read",
                self.audio_tracks
            ));
        }
    }
}

impl Reader for Packets {
    fn info(&self) -> &AudioInfo {
        &self.info
    }

    fn decode(&mut self, sink: &mut Sink) -> Result<(), Problem> {
        sink.trim(self.skip, self.keep);
        let mut count = 0;
        if let Some((mut planes, padding)) = self.first.take() {
            count += self.push(&mut planes, padding, sink)?;
        }
        let ended = self.rest(sink, &mut count);
        self.finish(sink, count);
        ended
    }
}
