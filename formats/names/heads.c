/* The table of output heads that are not called lm_head (tests/peers/families). */
#include "formats/names/heads.h"

#include "common/options.h"
#include "formats/checkpoint/config.h"

#define HEAD(module)                        \
    {                                       \
        .name = module ".weight", .rank = 2 \
    }

static const struct {
    const char *families; /* model types separated by spaces */
    tsr_tensor head;
} kHeads[] = {
    {"bert big_bird deberta deberta-v2 ernie fnet layoutlm megatron-bert mobilebert mra nystromformer rembert roformer "
     "roc_bert squeezebert tapas yoso",
     HEAD("cls.predictions.decoder")},
    {"bert-generation camembert data2vec-text esm jina_embeddings_v3 longformer mpnet roberta xlm-roberta "
     "xlm-roberta-xl xmod",
     HEAD("lm_head.decoder")},
    {"encoder-decoder speech-encoder-decoder vision-encoder-decoder", HEAD("decoder.cls.predictions.decoder")},
    {"blip", HEAD("text_decoder.cls.predictions.decoder")},
    {"modernbert modernbert-decoder", HEAD("decoder")},
    {"albert", HEAD("predictions.decoder")},
    {"luke", HEAD("entity_predictions.decoder")},
    {"convbert electra", HEAD("generator_lm_head")},
    {"distilbert", HEAD("vocab_projector")},
    {"flaubert xlm", HEAD("pred_layer.proj")},
    {"biogpt trocr", HEAD("output_projection")},
    {"gpt_neox_japanese", HEAD("embed_out")},
    {"t5gemma t5gemma2", HEAD("lm_head.out_proj")},
    {"canary moonshine whisper", HEAD("proj_out")},
    {"granite_speech5_ctc", HEAD("ctc_head")},
    {"blip-2 instructblip instructblipvideo", HEAD("language_model.lm_head")},
    {"kosmos-2 kosmos-2.5", HEAD("text_model.lm_head")},
};

const tsr_tensor *tsr_head_of(const tsr_checkpoint *c)
{
    static const tsr_tensor kUsual = HEAD("lm_head");
    tsr_arena arena = {0};
    const char *const type = tsr_config_find_string(c, "model_type", &arena);
    const tsr_tensor *head = &kUsual;
    for (size_t i = 0; type != NULL && i < sizeof kHeads / sizeof *kHeads; i++) {
        if (tsr_is_listed(kHeads[i].families, type))
            head = &kHeads[i].head;
    }
    tsr_arena_free(&arena);
    return head;
}
