# The small program and crumb-lm write the same text, byte by byte: both link to the same kernels. (Flags of other
# kernels may contract other multiplications and additions.)
# cmake -D PROGRAM=example-minimal_llama -D LM=crumb-lm -D MODELS=directory -D WORK=directory -P minimal_llama.cmake
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/expect.cmake")
set(model "${MODELS}/novels-llama-5m-q8_0.gguf")
# Longer than the 128 tokens that are computed together.
set(prompt "It was a dark evening, and the old man sat by the fire with a book upon his knees. ")
string(APPEND prompt "He had not turned a page of it since the lamp was lit, and nobody had spoken.")

# The same options for both; those of the small program once for each number of threads.
function(compare tokens counts)
    execute_process(COMMAND "${LM}" generate "${model}" -p "${prompt}" -n ${tokens} --temperature 0 --threads 1 ${ARGN}
        RESULT_VARIABLE code OUTPUT_VARIABLE expected ERROR_VARIABLE err)
    expect_equal("crumb-lm ${ARGN}: exit code" "${code}" 0)
    foreach(threads IN LISTS counts)
        run("${model}" "${prompt}" --tokens ${tokens} --threads ${threads} ${ARGN})
        expect_equal("${ARGN}, ${threads} threads: exit code" "${code}" 0)
        expect_equal("${ARGN}, ${threads} threads: stderr" "${err}" "")
        expect_equal("${ARGN}, ${threads} threads" "${out}" "${expected}")
    endforeach()
endfunction()
foreach(kv f16 q8_0 kivi4 kivi2)
    compare(120 "1;2;3" --kv ${kv})
endforeach()
compare(20 2 --weights q4_0)
compare(20 2 --weights u2)
compare(20 2 --weights iq4_nl)
compare(20 2 --weights q4_k)
compare(1000 1) # until the context is full

# Codebooks of the cache, calibrated on words of the model itself.
set(coded "${WORK}/minimal_llama_coded.gguf")
execute_process(COMMAND "${LM}" calibrate "${model}" --kv pq4 --text self --chunks 1 --share heads --out "${coded}"
    RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE err)
expect_equal("calibrate: exit code" "${code}" 0)
set(model "${coded}")
compare(40 "1;2" --kv pq4)

# Weights that crumb-lm has quantized, in formats of its own and nested.
set(model "${WORK}/minimal_llama_quantized.gguf")
function(compare_quantized format vocabulary)
    execute_process(COMMAND "${LM}" quantize "${MODELS}/novels-llama-5m-q8_0.gguf" --weights ${format} --chunks 1
        --vocabulary ${vocabulary} --sweeps 0 --out "${model}" ${ARGN}
        RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE err)
    expect_equal("quantize ${format}: exit code" "${code}" 0)
    compare(40 "1;2")
endfunction()
compare_quantized(cb4 cb4)
compare_quantized(cb4 cb4 --rotate)
compare_quantized(cb2s q8_0)
compare_quantized(nested:2-4 q8_0)
expect_error("tensor blk.0.attn_q.weight has packed numbers" "${model}" a --weights q4_0)
file(REMOVE "${model}")

# The same seed, the same words; hot, others than the likeliest.
run("${coded}" "${prompt}" --tokens 20 --temperature 0)
set(likeliest "${out}")
run("${coded}" "${prompt}" --tokens 20 --temperature 2)
set(hot "${out}")
run("${coded}" "${prompt}" --tokens 20 --temperature 2 --threads 1)
expect_equal("--temperature 2" "${out}" "${hot}")
if(hot STREQUAL likeliest)
    fail("--temperature 2 changes nothing")
endif()
set(model "${MODELS}/novels-llama-5m-q8_0.gguf")

expect_error("usage: minimal_llama" "${model}")
expect_error("'x' is not a number" "${model}" a --tokens x)
expect_error("nowhere.gguf" nowhere.gguf a)
expect_error("no codebooks of pq4;crumb-lm calibrate" "${model}" a --kv pq4)
expect_error("no kv codec is called 'f17'" "${model}" a --kv f17)
expect_error("--weights is" "${model}" a --weights cb4)
expect_error("no llama" "${MODELS}/novels-gpt2-5m-q8_0.gguf" a)
