#![no_main]

#[allow(dead_code, unused_imports)]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::quantising(data));
