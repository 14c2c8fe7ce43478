# The front door: `make demo` and `make check` do all set-up by themselves.
#
#   make demo        build the program and run attention on the arrays of a real model
#   make check       build everything and run the tests (without those labelled slow)
#   make check-warm  the tests that compile, twice on one store: cold, then warm; PRESET=clang: built so
#   make asan, tsan  the tests under sanitizers; make clang, clang-asan: built by clang++
#   make gpu-bundle  gather the programs and the libraries that they need in build/gpu/, to be run
#                    on a GPU machine that has nothing else installed
#   make format      clang-format every source
#   make tidy        clang-tidy every source
#   make readme      write the tables of README.md from the code
#   make docs        write the reference of the public headers to build/docs/html
#
# The CUDA headers and NVRTC are found in the usual places or below CUDAToolkit_ROOT=DIR: a toolkit,
# or the folder `nvidia` of the wheels nvidia-cuda-nvrtc and nvidia-cuda-runtime.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
JOBS ?= $(shell nproc)
release := build/release
program := $(release)/tilewright
demo_store := $(CURDIR)/build/demo-store

ifdef CUDAToolkit_ROOT
configure_flags += -DCUDAToolkit_ROOT=$(abspath $(CUDAToolkit_ROOT))
# Where CMake found NVRTC's header, its library lies too.
with_cuda = CUDA_HOME="$$(dirname "$$(sed -n s/TILEWRIGHT_NVRTC_INCLUDE_DIR:PATH=//p $(1)/CMakeCache.txt)")"
else
with_cuda =
endif

.PHONY: demo check check-warm nvrtc-versions asan tsan clang clang-asan gpu-bundle format tidy readme docs setup configure clean

setup:
	@src/install_packages.sh

configure: setup
	@mkdir -p build
	@cmake --preset release $(configure_flags) > build/configure.log 2>&1 || { cat build/configure.log; exit 1; }

minilm := tests/data/minilm
demo_command := tilewright run --q $(minilm)/q.npy --k $(minilm)/k.npy --v $(minilm)/v.npy \
  --mask $(minilm)/mask.npy --expect $(minilm)/o.npy

demo: configure
	@cmake --build $(release) --target tilewright --parallel $(JOBS)
	@rm -rf $(demo_store)
	@echo
	@echo "One attention layer of a sentence model (12 heads of 32) on two English texts, as one"
	@echo "padded batch; the result is compared with fp64 and with what the model itself computed."
	@for turn in first second; do \
	  echo; echo '$$ $(demo_command)'; \
	  TILEWRIGHT_CACHE_DIR=$(demo_store) $(call with_cuda,$(release)) $(release)/$(demo_command); \
	done

# Versions of NVRTC that the tests try beside the toolkit's, as FOLDER=WHEEL: the oldest that serves,
# the last of CUDA 12, the newest. Without pip or a network they are left out.
nvrtc_wheels := 12.4=nvidia-cuda-nvrtc-cu12==12.4.* 12.9=nvidia-cuda-nvrtc-cu12==12.9.* 13=nvidia-cuda-nvrtc==13.*

nvrtc-versions:
	@mkdir -p build/nvrtc
	@for pair in $(nvrtc_wheels); do \
	  folder=build/nvrtc/$${pair%%=*}; \
	  [ ! -e $$folder ] || continue; \
	  rm -rf build/nvrtc.part; \
	  if python3 -m pip install -q --no-deps --no-input --disable-pip-version-check \
	    --timeout 20 --retries 1 --target build/nvrtc.part "$${pair#*=}" > build/nvrtc.log 2>&1; then \
	    mv build/nvrtc.part $$folder; \
	  else \
	    echo "NVRTC $${pair%%=*} is not tested: pip cannot install $${pair#*=} ($$(tail -n 1 build/nvrtc.log))"; \
	  fi; \
	done

check: configure nvrtc-versions
	@cmake --build --preset release --parallel $(JOBS)
	@$(call with_cuda,$(release)) ctest --preset release --parallel $(JOBS)

warm_store := $(CURDIR)/build/warm-store

PRESET ?= release

check-warm: setup nvrtc-versions
	@cmake --preset $(PRESET) $(configure_flags) > build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@cmake --build --preset $(PRESET) --parallel $(JOBS)
	@rm -rf $(warm_store)
	@for turn in cold warm; do \
	  echo "The tests that compile, with a $$turn store"; \
	  (cd build/$(PRESET) && TILEWRIGHT_CACHE_DIR=$(warm_store) $(call with_cuda,.) \
	    ctest --output-on-failure --parallel $(JOBS) --label-regex compile --label-exclude "slow|gpu"); \
	done
	@TILEWRIGHT_CACHE_DIR=$(warm_store) build/$(PRESET)/tilewright cache stats

asan tsan clang clang-asan: setup
	@cmake --preset $@ $(configure_flags)
	@cmake --build --preset $@ --parallel $(JOBS)
	@cd build/$@ && $(call with_cuda,.) ctest --output-on-failure --label-exclude "slow|gpu"

# What every machine with a C++ run-time library has, and the driver, stay out of the bundle.
bundle := build/gpu
system_libraries := libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux-x86-64|libcuda

gpu-bundle: configure
	@src/install_packages.sh patchelf
	@cmake --build $(release) --parallel $(JOBS) --target tilewright tilewright_shared \
	  $$(ninja -C $(release) -t targets all | sed -nE 's/^(gpu_test|host_path_bench|pipeline_bench): .*/\1/p')
	@rm -rf $(bundle) && mkdir -p $(bundle)
	@for file in tilewright gpu_test host_path_bench pipeline_bench libtilewright.so.0; do \
	  if [ -e $(release)/$$file ]; then cp -L $(release)/$$file $(bundle)/; fi; \
	done
	@for file in $(bundle)/*; do ldd $$file; done | awk '$$2 == "=>" && $$3 ~ /^\// {print $$3}' | sort -u \
	  | grep -vE '/($(system_libraries))\.so' | while read library; do cp -Ln $$library $(bundle)/; done
	@ln -sf libtilewright.so.0 $(bundle)/libtilewright.so
	@for file in $(bundle)/*; do \
	  if [ ! -L $$file ]; then chmod u+w $$file; strip --strip-unneeded $$file; patchelf --set-rpath '$$ORIGIN' $$file; fi; \
	done
	@du -sh $(bundle); test $$(du -sm $(bundle) | cut -f1) -lt 40

sources = $(shell git ls-files '*.h' '*.cc' '*.cuh')

format:
	@clang-format -i $(sources)

tidy: configure
	@cmake --preset release $(configure_flags) -DCMAKE_EXPORT_COMPILE_COMMANDS=ON > /dev/null
	@git ls-files 'src/*.cc' 'cache/*.cc' | xargs -P $(JOBS) -n 4 clang-tidy -p $(release) --quiet

# The parts of README.md that end in <!-- end -->.
readme_parts := word-table env-table demo-run h200-run zoo-table clients-table

readme: configure
	@cmake --build $(release) --target tilewright --parallel $(JOBS)
	@for table in word env; do $(program) doctor --$$table-table > build/$$table-table.md; done
	@fence='```'; \
	{ echo "$$fence"; echo '$$ make demo'; $(MAKE) -s demo | sed -n '/^One attention/,$$p'; echo "$$fence"; } > build/demo-run.md; \
	{ echo "$$fence"; cat bench/results/h200/readme_run.txt; echo "$$fence"; } > build/h200-run.md
	@python3 bench/portable.py --table bench/results/h200/portable.json > build/zoo-table.md
	@python3 bench/clients.py --table bench/results/h200/clients.json > build/clients-table.md
	@for part in $(readme_parts); do \
	  sed -i -e "/<!-- $$part -->/,/<!-- end -->/{/<!-- $$part -->/{p;r build/$$part.md" -e "};/<!-- end -->/p;d}" README.md; \
	done

docs:
	@src/install_packages.sh doxygen
	@mkdir -p build
	@doxygen src/package/Doxyfile

clean:
	@rm -rf build
