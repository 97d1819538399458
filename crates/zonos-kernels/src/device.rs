//! Device names as users type them.

use burn::tensor::Device;
use thiserror::Error;

/// Why a device name was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DeviceError {
    /// The name is none that this project knows.
    #[error(
        "unknown device '{0}'; expected cpu, flex, ndarray, cuda[:N], wgpu, vulkan[:N] or metal"
    )]
    Unknown(String),
    /// The backend was left out of this build.
    #[error(
        "device '{name}' is not in this build; build with `--features {feature}` (devices here: {available})"
    )]
    NotBuilt {
        /// The name as given.
        name: String,
        /// The cargo feature that brings it.
        feature: &'static str,
        /// Devices that this build has.
        available: String,
    },
    /// The part after the colon is not a device number.
    #[error("device '{0}': expected a number after ':', as in cuda:0")]
    BadIndex(String),
}

/// Names of the devices that this build can open, the default first.
pub fn available_devices() -> Vec<&'static str> {
    let mut names = Vec::new();
    if cfg!(feature = "flex") {
        names.extend(["cpu", "flex"]);
    }
    for (present, name) in [
        (cfg!(feature = "ndarray"), "ndarray"),
        (cfg!(feature = "cuda"), "cuda"),
        (cfg!(feature = "wgpu"), "wgpu"),
        (cfg!(feature = "vulkan"), "vulkan"),
        (cfg!(feature = "metal"), "metal"),
    ] {
        if present {
            names.push(name);
        }
    }
    names
}

/// Opens the device that `name` means: `cpu` and `flex` are the SIMD CPU backend, `cuda:1` the
/// second CUDA GPU, `vulkan:1` the second discrete Vulkan GPU.
///
/// # Errors
///
/// [`DeviceError`] when the name is unknown, malformed, or its backend was not built in.
pub fn parse_device(name: &str) -> Result<Device, DeviceError> {
    let lower = name.trim().to_ascii_lowercase();
    let (kind, index) = match lower.split_once(':') {
        None => (lower.as_str(), None),
        Some((kind, index)) => (
            kind,
            Some(
                index
                    .parse::<usize>()
                    .map_err(|_| DeviceError::BadIndex(name.to_owned()))?,
            ),
        ),
    };
    let missing = |feature: &'static str| DeviceError::NotBuilt {
        name: name.to_owned(),
        feature,
        available: available_devices().join(", "),
    };
    let no_index = |device: Device| match index {
        None => Ok(device),
        Some(_) => Err(DeviceError::BadIndex(name.to_owned())),
    };
    match kind {
        #[cfg(feature = "flex")]
        "cpu" | "flex" => no_index(Device::flex()),
        #[cfg(not(feature = "flex"))]
        "cpu" | "flex" => Err(missing("flex")),
        #[cfg(feature = "ndarray")]
        "ndarray" => no_index(Device::ndarray()),
        #[cfg(not(feature = "ndarray"))]
        "ndarray" => Err(missing("ndarray")),
        #[cfg(feature = "cuda")]
        "cuda" => Ok(Device::cuda(index.unwrap_or(0))),
        #[cfg(not(feature = "cuda"))]
        "cuda" => Err(missing("cuda")),
        #[cfg(feature = "wgpu")]
        "wgpu" => Ok(Device::wgpu(gpu_kind(index))),
        #[cfg(not(feature = "wgpu"))]
        "wgpu" => Err(missing("wgpu")),
        #[cfg(feature = "vulkan")]
        "vulkan" => Ok(Device::vulkan(gpu_kind(index))),
        #[cfg(not(feature = "vulkan"))]
        "vulkan" => Err(missing("vulkan")),
        #[cfg(feature = "metal")]
        "metal" => Ok(Device::metal(gpu_kind(index))),
        #[cfg(not(feature = "metal"))]
        "metal" => Err(missing("metal")),
        _ => {
            // Every arm above may be compiled out; keep the helpers in use.
            let _ = (&no_index, &missing);
            Err(DeviceError::Unknown(name.to_owned()))
        }
    }
}

/// Whether tensors on `device` lie in the CPU's memory, where plain code can read them.
pub fn is_cpu(device: &Device) -> bool {
    let device = device.clone().without_autodiff();
    let cpus: &[Device] = &[
        #[cfg(feature = "flex")]
        Device::flex(),
        #[cfg(feature = "ndarray")]
        Device::ndarray(),
    ];
    cpus.contains(&device)
}

/// Whether kernels on `device` multiply by quantised blocks as they are stored. On other devices such
/// weights are better decoded once, when they are loaded.
pub fn reads_blocks(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    return device.clone().without_autodiff() == Device::flex();
    #[cfg(not(feature = "flex"))]
    {
        let _ = device;
        false
    }
}

/// Runs `f` on one of the threads that kernels of `device` share their work among, where there are such
/// threads. A step is hundreds of products, and from elsewhere each would put the caller to sleep until
/// others have done it.
pub fn on_worker<R: Send>(device: &Device, f: impl FnOnce() -> R + Send) -> R {
    if reads_blocks(device) {
        rayon::scope(|_| f())
    } else {
        f()
    }
}

#[cfg(any(feature = "wgpu", feature = "vulkan", feature = "metal"))]
fn gpu_kind(index: Option<usize>) -> burn::tensor::DeviceKind {
    match index {
        None => burn::tensor::DeviceKind::DefaultDevice,
        Some(i) => burn::tensor::DeviceKind::DiscreteGpu(i),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_mean_nothing_are_refused_by_name() {
        assert_eq!(
            parse_device("tpu"),
            Err(DeviceError::Unknown("tpu".to_owned()))
        );
        assert_eq!(
            parse_device("cuda:x"),
            Err(DeviceError::BadIndex("cuda:x".to_owned()))
        );
    }

    #[cfg(feature = "flex")]
    #[test]
    fn cpu_means_flex() {
        assert_eq!(parse_device("CPU"), Ok(Device::flex()));
        assert_eq!(parse_device("cpu"), parse_device("flex"));
        assert!(parse_device("cpu:1").is_err());
        assert!(is_cpu(&Device::flex()) && is_cpu(&Device::flex().autodiff()));
    }
}
