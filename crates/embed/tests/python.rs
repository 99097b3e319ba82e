//! The Python package: its wheel is built, installed into a virtual environment, and used.

mod common;

use std::fs;
use std::process::Command;

use common::{example, folder, is_installed, library, output, own};

#[test]
fn the_wheel_is_installed_and_used() {
    if !is_installed("python3") {
        eprintln!("skipped: python3 is not installed");
        return;
    }
    let folder = folder("python");
    let build = |into: &str| {
        let into = folder.join(into);
        fs::create_dir(&into).expect("a folder");
        let script = own("python/build_wheel.py");
        let path = output(Command::new("python3").arg(script).args([&library("so"), &into]));
        path.trim_end().to_owned()
    };
    let (wheel, again) = (build("one"), build("two"));
    let read = |path: &str| fs::read(path).expect("a wheel");
    assert!(read(&wheel) == read(&again), "two wheels of the same files differ");

    let environment = folder.join("environment");
    let made = Command::new("python3").args(["-m", "venv"]).arg(&environment).output();
    let mut tests = if made.is_ok_and(|made| made.status.success()) {
        let program = environment.join("bin/python");
        let install = ["-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check"];
        output(Command::new(&program).args(install).arg(&wheel));
        Command::new(&program)
    } else {
        eprintln!("the wheel is unpacked, not installed: python3 -m venv fails");
        output(Command::new("python3").args(["-m", "zipfile", "-e", &wheel]).arg(&environment));
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", &environment);
        python
    };
    fs::write(folder.join("example.py"), example("python")).expect("a file");
    let runs = "import example, runpy, sys; runpy.run_path(sys.argv.pop(), run_name='__main__')";
    let text = output(tests.args(["-c", runs]).arg(own("python/tests.py")).current_dir(&folder));
    let expected = "b'hello' None True 4\n{'one': b'1', 'two': b'2'}\n1\n";
    assert_eq!(text, expected, "what the page's example prints");
    fs::remove_dir_all(&folder).expect("the folder");
}
