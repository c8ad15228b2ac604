#!/usr/bin/env bash
# Make the numbers and pictures of docs/studies.md anew: all of them, or those that are named.
#
#     bash extras/studies.sh              # five hours of one core, and SmolLM2; finished runs are kept
#     bash extras/studies.sh c f
#
# The last of them, `pretrained`, needs SmolLM2: docs/manual.md ("Pretrained models").
set -euo pipefail
cd "$(dirname "$0")/.."

study() { # folder, words of extras.compare: a table and a picture for each of the goals
    mkdir -p "out-studies/$1"
    for goal in ${goals:-eval/verify greedy/verify eval/tokens}; do
        printf '\n%s\n' "$1, $goal"
        python -m extras.compare "out-studies/$1" "${@:2}" "--goal=$goal" |
            tee "out-studies/$1/${goal//\//-}.txt"
    done
}

long="config/grpo_think.py extras/studies/grpo_cups20.py --max_iters=40"
papers=()
for paper in grpo dr_grpo dapo rloo gspo cispo maxrl; do
    papers+=("$paper=config/papers/$paper.py --draw_prompts=random")      # DAPO without its sampling
done
rules=(std=--adv_norm=std none=--adv_norm=none batch=--adv_norm=batch)

a() { # seven papers, one update a step
    study a $long --seeds=1,2,3,4,5 "${papers[@]}"
    for lr in 3e-4 3e-3; do
        study a-$lr $long --learning_rate=$lr --seeds=1,2,3 "${papers[@]}"
    done
}

b() { # sixteen updates a step; GSPO also with a clip a hundred times as wide
    for lr in 1e-4 3e-4 1e-3; do
        study b-$lr $long --max_iters=12 --warmup_iters=2 --eval_interval=4 \
            --learning_rate=$lr --min_lr=$lr --batch_size=8 --gradient_accumulation_steps=4 \
            --mini_batches=4 --epochs=4 --seeds=1,2,3 "${papers[@]}" \
            'gspo_wide=config/papers/gspo.py --clip_low=0.03 --clip_high=0.04'
    done
}

c() { # what an advantage is divided by: with one reward, and with two
    study c-one $long --seeds=1,2,3,4,5 "${rules[@]}"
    two="config/grpo_config.py extras/studies/grpo_repeats.py"
    goals="eval/reward eval/verify eval/repeats" study c-two $two --seeds=1,2,3,4,5 "${rules[@]}"
    for lr in 3e-4 3e-3; do
        study c-one-$lr $long --learning_rate=$lr --seeds=1,2,3 "${rules[@]}"
    done
    for lr in 1.3e-3 1.2e-2; do
        goals="eval/reward eval/verify" study c-two-$lr $two --learning_rate=$lr --seeds=1,2,3 "${rules[@]}"
    done
}

d() { # group size, for 256 completions a step
    for lr in 1e-3 3e-3; do
        study d-$lr $long --learning_rate=$lr --seeds=1,2,3 'k8=--group_size=8 --batch_size=32' \
            'k4=--group_size=4 --batch_size=64' 'k16=--group_size=16 --batch_size=16' \
            'k64=--group_size=64 --batch_size=4'
    done
}

e() { # the KL, with a judge that can be fooled
    hacked="config/grpo_config.py --judge=config/networks/judge_classifier.py --seeds=1,2,3"
    kls=('exact=--kl_beta=0.2 --kl_type=exact' 'k3=--kl_beta=0.2 --kl_type=k3'
         "reward=--kl_beta=0 --rewards={'judge':1.0,'kl':-0.05}")
    more=('k2=--kl_beta=0.2 config/kl/k2.py' 'k3_weak=--kl_beta=0.07 --kl_type=k3'
          'k3_ratio=--kl_beta=0.2 config/kl/k3_ratio.py' 'target=--kl_beta=0.2 --target_kl=0.5')
    local goals="eval/verify eval/judge cpu_seconds"
    study e $hacked none=--kl_beta=0 "${kls[@]}" "${more[@]}"
    study e-1.3e-3 $hacked --learning_rate=1.3e-3 none=--kl_beta=0 "${kls[@]}"
    goals=kl                                    # `none` has no reference to compare with
    study e $hacked "${kls[@]}" "${more[@]}"
    study e-1.3e-3 $hacked --learning_rate=1.3e-3 "${kls[@]}"
}

f() { # what the loss is divided by, where lengths differ
    norms=(token=--loss_norm=token sequence=--loss_norm=sequence constant=--loss_norm=constant)
    study f-cups20 $long --seeds=1,2,3,4,5 "${norms[@]}"
    for lr in 3e-4 3e-3; do
        study f-cups20-$lr $long --learning_rate=$lr --seeds=1,2,3 "${norms[@]}"
    done
    # the same, from a policy that thinks already
    study f-late $long --generator=out-studies/f-cups20/token-1 --seeds=1,2,3 "${norms[@]}"
    study f-think config/grpo_think.py --max_iters=60 --seeds=1,2,3,4,5 "${norms[@]}"
}

g() { # more prompts a step: groups that teach nothing cost only their sampling
    for lr in 1e-3 3e-3; do
        study g-$lr $long --learning_rate=$lr --seeds=1,2,3 \
            p32=--batch_size=32 p64=--batch_size=64 p128=--batch_size=128
    done
}

h() { # what samples: a colder or warmer policy, or its likeliest tokens
    for lr in 3e-4 1e-3 3e-3; do
        study h-$lr $long --learning_rate=$lr --seeds=1,2,3 plain= cold=--temperature=0.7 \
            warm=--temperature=1.3 top_p=--top_p=0.9 top_k=--top_k=2
    done
}

# Learning rates, and other flags: the likelihoods of masked models, with all else equal.
estimates() {
    all_equal="--loss_norm=token --clip_low=0.2 --clip_high=0.2 --kl_type=exact"
    variants=()
    for likelihood in trajectory=grpo coupled=diffucoder random=unigrpo one_pass=d1; do
        for lr in $1; do
            variants+=("${likelihood%=*}-$lr=config/papers/${likelihood#*=}.py $all_equal ${*:2} --learning_rate=$lr")
        done
    done
}

i() { # estimates of the likelihood: thoughts, also with four epochs; equations in 5 and 2 passes
    weak=out/thoughts_weak.pt
    [ -e $weak ] || python pretrain.py --dataset=thoughts --blank_kind=marked \
        config/networks/generator_thoughts.py --max_iters=400 --out=$weak
    thoughts="config/grpo_order.py --fill_order=confident --n_fill_steps=8 --generator=$weak"
    thoughts+=" --batch_size=32 --min_lr=1e-5 --seeds=1,2,3"
    export goals=eval/verify
    same="--adv_norm=batch --kl_beta=0 --fill_order=confident"
    estimates "1e-4 3e-4 1e-3" $same --epochs=1
    study i-thoughts $thoughts --max_iters=60 --eval_interval=20 "${variants[@]}"
    estimates "1e-4 3e-4" $same --epochs=4
    study i-epochs $thoughts --max_iters=20 --eval_interval=10 "${variants[@]}"
    equations="config/grpo_passes.py --max_iters=80 --eval_interval=40 --eval_prompts=512"
    same="--adv_norm=none --kl_beta=0.1 --epochs=1"
    estimates "6e-4 2e-3 6e-3" $same --fill_order=left
    study i-five $equations --seeds=1,2,3 "${variants[@]}"
    estimates "6e-4 2e-3 6e-3" $same --fill_order=random
    study i-two $equations --seeds=1,2,3 --n_fill_steps=2 "${variants[@]}"
    unset goals
}

j() { # fixed schedules of passes, and learned ones at four costs
    variants=("one=--n_fill_steps=1 --fill_order=random")
    for order in random left confident; do
        for n in 2 3 5; do
            variants+=("$order$n=--n_fill_steps=$n --fill_order=$order")
        done
    done
    for cost in 0 0.03 0.1 0.2; do
        variants+=("learned$cost=--rewards={'verify':1.0,'passes':-$cost}")
    done
    goals="eval/verify eval/passes eval/pass@4" study j extras/studies/grpo_order_cost.py \
        --eval_interval=50 --seeds=1,2 "${variants[@]}"
}

k() { # orders and passes on three tasks in which the order matters; seed 1
    thoughts=config/networks/generator_thoughts.py
    for task in "data/thoughts.py $thoughts" "extras/studies/thoughts_backwards.py $thoughts" \
            "extras/studies/carries.py extras/studies/generator_carries.py"; do
        read -r data recipe <<< "$task"
        name=$(basename $data .py)
        for schedule in "learned 12" {random,left,confident}" "{2,4,8}; do
            read -r order n <<< "$schedule"
            run=out-studies/k-$name-$order-$n
            python train_grpo.py config/grpo_order.py --eval_interval=50 --dataset=$data \
                --generator=$recipe --fill_order=$order --n_fill_steps=$n --out_dir=$run > $run.txt
            echo $run; grep 'greedy' $run.txt
        done
    done
}

l() { # three later papers, a first look
    for lr in 3e-4 1e-3 3e-3; do
        goals="eval/verify greedy/verify" study l-dppo-$lr config/grpo_think.py --max_iters=12 --warmup_iters=2 \
            --eval_interval=6 --eval_prompts=256 --batch_size=8 --gradient_accumulation_steps=4 \
            --mini_batches=4 --epochs=4 --learning_rate=$lr --seeds=1,2,3 \
            dr_grpo=config/papers/dr_grpo.py dppo=config/papers/dppo.py
    done
    weak=out/thoughts_weak.pt
    [ -e $weak ] || python pretrain.py --dataset=thoughts --blank_kind=marked \
        config/networks/generator_thoughts.py --max_iters=400 --out=$weak
    d1="config/papers/d1.py --epochs=1 --temperature=1 --clip_low=0.2 --clip_high=0.2"
    for lr in 1e-4 3e-4 1e-3; do
        goals="eval/verify greedy/verify" study l-tis-$lr config/grpo_order.py --n_fill_steps=8 --max_iters=20 \
            --eval_interval=10 --eval_prompts=256 --batch_size=32 --min_lr=1e-5 \
            --generator=$weak --learning_rate=$lr --seeds=1,2,3 "d1=$d1" \
            "tis=config/papers/tis.py $d1 --objective=tis"
    done
    for lr in 1.3e-3 4e-3 1.2e-2; do
        goals="eval/reward eval/verify" study l-gdpo-$lr config/grpo_config.py \
            extras/studies/grpo_repeats.py --max_iters=100 --eval_interval=50 --eval_prompts=256 \
            --learning_rate=$lr --seeds=1,2,3 std=--adv_norm=std \
            "gdpo=config/papers/gdpo.py --loss_norm=token --kl_beta=0.05 --entropy_coef=0.02"
    done
}

m() { # credit for a token or a turn, a fifth of the tokens, replay: a first look
    local goals=eval/verify
    for lr in 3e-4 1e-3 3e-3; do
        study m-$lr config/grpo_think.py --max_iters=40 --eval_interval=10 --learning_rate=$lr \
            --seeds=1,2,3 plain= grpo='config/papers/grpo.py --kl_beta=0' \
            forks=config/papers/forks.py replay=config/papers/replay.py \
            process=extras/studies/think_process.py
    done
    for lr in 3e-3 1e-2 3e-2; do
        study m-gigpo-$lr config/grpo_guess.py --max_iters=40 --learning_rate=$lr --seeds=1,2,3 \
            'none=--adv_norm=none --loss_norm=sequence' \
            'gigpo=config/papers/gigpo.py --kl_beta=0 --entropy_coef=0.05'
    done
}

n() { # a teacher: three students, each with its seed
    mkdir -p out-studies
    alone="--rewards={'verify':0.0} --kl_beta=1"
    [ -e out-think/ckpt.pt ] || python train_grpo.py config/grpo_think.py
    for s in 1 2 3; do
        student=out/student$s.pt
        [ -e $student ] || python pretrain.py --dataset=cups config/networks/generator_student.py \
            --seed=$s --out=$student
        for lr in 3e-4 1e-3 3e-3 1e-2 3e-2; do
            for variant in "reward --reference= --kl_beta=0" "both --kl_beta=0.1" \
                    "teacher $alone" "forward config/kl/forward.py $alone" \
                    "samples extras/studies/imitate.py"; do
                read -r name words <<< "$variant"
                run=out-studies/n-$name-$lr-$s
                [ -e $run.txt ] || python train_grpo.py config/grpo_distill.py $words --seed=$s \
                    --generator=$student --learning_rate=$lr --out_dir=$run > $run.txt
                echo $run; grep greedy $run.txt | tail -1
            done
        done
    done
}

share() { # the game of cups: how many of the texts that the generator reads must think?
    mkdir -p out-studies
    for name in 1 2 5 20 errors no_colon; do
        case $name in
            errors) texts="cups.texts(errors=0.1)" ;;
            no_colon) texts="[[(p, a.lstrip(':')) for p, a in part] for part in cups.texts()]" ;;
            *) texts="cups.texts(share=$name / 100)" ;;
        esac
        data=out-studies/cups_$name.py
        printf '%s\n' "from data import cups" "from data.cups import verify" "" "" "def texts():" \
            "    return $texts" > $data
        [ -e out/cups_$name.pt ] || python pretrain.py config/networks/generator_think.py \
            --dataset=$data --out=out/cups_$name.pt
        goals=eval/verify study share config/grpo_think.py --dataset=$data --seeds=1,2,3 \
            "$name=--generator=out/cups_$name.pt"
    done
}

cost() { # the game of cups: what may a token cost?
    variants=()
    for weight in 0.25 0.5 1 2; do
        variants+=("$weight=--rewards={'verify':1.0,'length':-$weight}")
    done
    goals=eval/verify study cost config/grpo_think.py --adv_norm=none --max_iters=200 \
        --seeds=1,2,3 "${variants[@]}"
}

rate() { # name, words, steps between evaluations, learning rates: all evaluations of seed 1
    mkdir -p out-studies
    for lr in "${@:4}"; do
        run=out-studies/rates-$1-$lr
        if [ ! -e "$run.txt" ]; then
            python train_grpo.py $2 "--eval_interval=$3" "--learning_rate=$lr" "--out_dir=$run" > "$run.part"
            mv "$run.part" "$run.txt"
        fi
        echo "$run"; grep greedy "$run.txt"
    done
}

rates() { # three learning rates of every small experiment
    rate think config/grpo_think.py 10 3e-4 1e-3 3e-3
    rate think_cost "config/grpo_think.py --rewards={'verify':1.0,'length':-1.0} --adv_norm=none --max_iters=200" 10 3e-4 1e-3 3e-3
    rate config config/grpo_config.py 25 1.3e-3 4e-3 1.2e-2
    rate causal config/grpo_causal.py 15 7e-4 2e-3 6e-3
    rate labels config/grpo_labels.py 5 1.7e-4 5e-4 1.5e-3
    rate alliteration "config/grpo_composite.py --rewards={'verify':1.0,'alliteration':1.0}" 10 3e-4 1e-3 3e-3
    rate passes config/grpo_passes.py 50 7e-4 2e-3 6e-3
    rate composite config/grpo_composite.py 10 3e-4 1e-3 3e-3
    rate docstrings config/grpo_docstrings.py 50 7e-4 2e-3 6e-3
    python -m extras.tasks times 1000 > out-studies/mine.jsonl
    rate pairs "config/grpo_pairs.py --dataset=out-studies/mine.jsonl" 20 3e-4 1e-3 3e-3
}

pretrained() { # three learning rates of the models of others
    rate sums extras/studies/grpo_sums.py 15 7e-6 2e-5 6e-5
    rate problems config/grpo_problems.py 8 1e-5 2e-5 4e-5
}

for name in ${*:-a b c d e f g h i j k l m n share cost rates pretrained}; do
    $name
done
