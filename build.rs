//! Compiles the BPF program of the kernel tap, where there is a compiler for
//! it. Where there is none the crate builds all the same, and the tap says at
//! run time what to install.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

const SOURCE: &str = "src/source/tap/tap.bpf.c";

fn main() {
    println!("cargo::rustc-check-cfg=cfg(tap_program)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=CLANG");
    let linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    if !linux || env::var_os("CARGO_FEATURE_TAP").is_none() {
        return;
    }
    match compile() {
        Ok(object) => {
            println!("cargo::rustc-cfg=tap_program");
            println!("cargo::rustc-env=TAP_PROGRAM={}", object.display());
        }
        Err(reason) => println!(
            "cargo::warning=built without the kernel tap (--tap), {reason}: install clang and \
             libbpf-dev (scripts/setup.sh build does) and build again"
        ),
    }
}

fn compile() -> Result<PathBuf, String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let object = out.join("tap.bpf.o");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    // The driver needs 64 bits, and libbpf's headers know where a function's
    // first argument is on these.
    let target = match arch.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        "riscv64" => "riscv",
        "powerpc64" => "powerpc",
        "s390x" => "s390",
        "loongarch64" => "loongarch",
        other => return Err(format!("which does not run on {other}")),
    };
    let endian = match env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() {
        Ok("big") => "bpfeb",
        _ => "bpfel",
    };
    let mut last = String::from("clang was not found");
    for clang in compilers() {
        let mut command = Command::new(&clang);
        command
            .args(["-O2", "-g", "-Wall", "-target", endian])
            .arg(format!("-D__TARGET_ARCH_{target}"));
        // Debian keeps asm/ apart for every architecture.
        let multiarch = format!("/usr/include/{arch}-linux-gnu");
        if Path::new(&multiarch).is_dir() {
            command.arg("-I").arg(multiarch);
        }
        command.arg("-c").arg(SOURCE).arg("-o").arg(&object);
        match command.output() {
            Ok(done) if done.status.success() => return Ok(object),
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stderr);
                let line = said.lines().find(|line| line.contains("error:"));
                last = format!(
                    "as {clang} says '{}'",
                    line.unwrap_or("nothing").trim().replace('\'', "")
                );
            }
            Err(_) => {}
        }
    }
    Err(last)
}

/// Compilers to try, the caller's own first, then what distributions call it.
fn compilers() -> impl Iterator<Item = String> {
    let given = env::var("CLANG").ok();
    let versions = (11..=22).rev().map(|version| format!("clang-{version}"));
    given
        .into_iter()
        .chain(std::iter::once("clang".into()))
        .chain(versions)
}
