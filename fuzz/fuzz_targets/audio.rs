#![no_main]

#[allow(dead_code, unused_imports)]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(init: targets::spare_guarded_panics(), |data: &[u8]| targets::audio(data));
