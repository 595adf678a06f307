# A template: `make dist URL=https://…` replaces the names between @ and writes dist/llmkube.rb, for a tap of your own.
# brew has never run it; `ruby -c` checks it in tests/supply/test_formula.py.
class Llmkube < Formula
  desc "Kubernetes for local LLMs: models as objects, served on this machine"
  homepage "@HOMEPAGE@"
  url "@URL@"
  version "@VERSION@"
  sha256 "@SHA256@"
  license "@LICENSE@"

  depends_on "python@3.13"

  # Only wheels, each with the digest that the release's lock pins: nothing is compiled, and no package's script runs.
  def install
    python = Formula["python@3.13"].opt_bin/"python3.13"
    system python, "-m", "venv", libexec
    pip = [libexec/"bin/python", "-m", "pip", "install", "--disable-pip-version-check"]
    system(*pip, "--require-hashes", "--only-binary=:all:",
           "--requirement=requirements/llama.txt", "--requirement=requirements/build.txt")
    system(*pip, "--no-deps", "--no-build-isolation", ".")
    bin.install_symlink libexec/"bin/llmkube", libexec/"bin/llmkube-metal-agent"
    generate_completions_from_executable(libexec/"bin/llmkube", "completion", shells: [:bash, :zsh, :fish])
  end

  service do
    run [opt_bin/"llmkube", "up"]
    keep_alive successful_exit: false
    log_path var/"log/llmkube.log"
    error_log_path var/"log/llmkube.log"
  end

  def caveats
    <<~EOS
      With a cluster, install the agent as a separate job:
        llmkube agent install --daemon
      Repeat this after each upgrade, because the job contains the program's path. `llmkube doctor` shows problems of this Mac.
    EOS
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/llmkube --version")
  end
end
