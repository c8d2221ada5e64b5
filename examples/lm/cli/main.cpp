// crumb-lm: runs language models in GGUF files on crumb's kernels.
#include "cli/command_line.hpp"
#include "cli/program.hpp"

int main(int argc, char** argv) {
    return lm::run_program("crumb-lm", [&] { return lm::run_command_line(argc, argv); });
}
